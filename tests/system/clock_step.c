/* Preloaded into a process, it steps the wall clock that this process sees: to every question for
 * the time of day it adds an offset, which a test writes into the file that CLOCK_STEP_FILE names
 * (int64, nanoseconds) while the process runs. Steady clocks and the kernel's own stay as they
 * are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t kSecond = 1000000000;
static const int64_t* shared_offset; /* null until there is a file */

__attribute__((constructor)) static void MapOffset(void) {
  const char* path = getenv("CLOCK_STEP_FILE");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) shared_offset = mapped;
}

static int64_t Offset(void) {
  return shared_offset == NULL ? 0 : __atomic_load_n(shared_offset, __ATOMIC_RELAXED);
}

static void Add(int64_t nanoseconds, struct timespec* time) {
  const int64_t sum = (int64_t)time->tv_sec * kSecond + time->tv_nsec + nanoseconds;
  time->tv_sec = sum / kSecond;
  time->tv_nsec = sum % kSecond;
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  typedef int (*ClockGetTime)(clockid_t, struct timespec*);
  static ClockGetTime next; /* found again by each thread that comes early: the same every time */
  if (next == NULL) next = (ClockGetTime)dlsym(RTLD_NEXT, "clock_gettime");
  const int result = next(clock, time);
  const int is_time_of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (result == 0 && is_time_of_day) Add(Offset(), time);
  return result;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}
