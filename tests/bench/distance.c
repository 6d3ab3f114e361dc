/* A link over a long distance between two network namespaces: a TUN device in each, and a loop that
   carries packets from one to the other, later, no faster than a rate, and without some of them.

     distance NAMESPACE ADDRESS NAMESPACE ADDRESS DELAY_MS MBIT QUEUE_KIB LOSS_PERCENT

   The delay is of one way, so a round trip takes twice as long. Packets wait for the link in a
   queue of that size, and are dropped where it is full. It writes "up" once the link is there, and
   runs until it is killed. A starved relay drops packets of its own: give it a real-time priority
   (chrt -f 20). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { kPackets = 65536, kLongest = 1600, kBatch = 256 };

struct packet {
  int64_t due; /* when it leaves at the other end, in nanoseconds */
  int bytes;
  unsigned char data[kLongest];
};

/* One direction: a ring of packets on their way, oldest first. */
struct way {
  struct packet* ring;
  int first, end;
  int64_t free_at; /* when the link has sent everything before */
};

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void die(const char* what) {
  perror(what);
  exit(1);
}

/* Opens a TUN device with this address in that namespace. */
static int open_device(const char* namespace, const char* address) {
  char text[256];
  const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  snprintf(text, sizeof text, "/var/run/netns/%s", namespace);
  const int there = open(text, O_RDONLY | O_CLOEXEC);
  if (home < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0) die(text);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  struct ifreq request;
  memset(&request, 0, sizeof request);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  strcpy(request.ifr_name, "far");
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) die("/dev/net/tun");
  snprintf(text, sizeof text,
           "ip link set lo up && ip addr add %s/24 dev far && "
           "ip link set far mtu 1500 txqueuelen 4000 up",
           address);
  if (system(text) != 0 || setns(home, CLONE_NEWNET) != 0) die(text);
  close(home);
  close(there);
  return device;
}

int main(int count, char** words) {
  if (count != 9) {
    fprintf(stderr,
            "usage: distance NAMESPACE ADDRESS NAMESPACE ADDRESS DELAY_MS MBIT QUEUE_KIB "
            "LOSS_PERCENT\n");
    return 2;
  }
  const int devices[2] = {open_device(words[1], words[2]), open_device(words[3], words[4])};
  const int64_t delay = (int64_t)(atof(words[5]) * 1e6);
  const double ns_a_byte = 8000.0 / atof(words[6]);
  const double queue_ns = atof(words[7]) * 1024 * ns_a_byte;
  const double loss = atof(words[8]) / 100;
  struct way ways[2] = {{0}};
  for (int i = 0; i < 2; ++i) ways[i].ring = malloc(sizeof(struct packet) * kPackets);
  puts("up");
  fflush(stdout);
  for (;;) {
    int64_t next = now_ns() + 50000000;
    for (int i = 0; i < 2; ++i) {
      struct way* way = &ways[i];
      for (; way->first != way->end; way->first = (way->first + 1) % kPackets) {
        const struct packet* packet = &way->ring[way->first];
        if (packet->due > now_ns()) {
          if (packet->due < next) next = packet->due;
          break;
        }
        const ssize_t written = write(devices[1 - i], packet->data, (size_t)packet->bytes);
        if (written < 0 && errno == EAGAIN) break;
      }
    }
    struct pollfd polled[2] = {{devices[0], POLLIN, 0}, {devices[1], POLLIN, 0}};
    const int64_t left = next - now_ns();
    const struct timespec wait = {.tv_sec = 0, .tv_nsec = left > 0 ? left : 0};
    ppoll(polled, 2, &wait, NULL);
    for (int i = 0; i < 2; ++i) {
      struct way* way = &ways[i];
      for (int n = 0; n < kBatch; ++n) {
        struct packet* packet = &way->ring[way->end];
        packet->bytes = (int)read(devices[i], packet->data, kLongest);
        if (packet->bytes <= 0) break;
        const int64_t now = now_ns();
        const int64_t begin = way->free_at > now ? way->free_at : now;
        const int next_end = (way->end + 1) % kPackets;
        const int is_full = (double)(begin - now) > queue_ns || next_end == way->first;
        if (is_full || drand48() < loss) continue;
        way->free_at = begin + (int64_t)(packet->bytes * ns_a_byte);
        packet->due = way->free_at + delay;
        way->end = next_end;
      }
    }
  }
}
