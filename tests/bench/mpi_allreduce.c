/* For compare.py: averages the same tensors by MPI's all-reduce, once for each line of standard
   input, and prints the seconds of the slowest process and the CPU seconds of all. Between turns no
   process spins. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define ELEMENTS (16u << 20)
#define POLL_US 2000

static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
         1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Whether there is another turn: process 0 reads it, and tells the others. */
static int next_turn(int rank, int size) {
  int more = 0;
  if (rank == 0) {
    char line[16];
    more = fgets(line, sizeof(line), stdin) != NULL;
    for (int other = 1; other < size; ++other) {
      MPI_Send(&more, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
    }
    return more;
  }
  for (int is_here = 0; !is_here;) {
    MPI_Iprobe(0, 0, MPI_COMM_WORLD, &is_here, MPI_STATUS_IGNORE);
    if (!is_here) usleep(POLL_US);
  }
  MPI_Recv(&more, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return more;
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  float* const fresh = malloc(ELEMENTS * sizeof(float));
  float* const data = malloc(ELEMENTS * sizeof(float));
  if (fresh == NULL || data == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  for (size_t i = 0; i < ELEMENTS; ++i) fresh[i] = (float)(i % 1009) - 504.0f + (float)rank;
  while (next_turn(rank, size)) {
    memcpy(data, fresh, ELEMENTS * sizeof(float));
    MPI_Barrier(MPI_COMM_WORLD);
    double spent[2] = {MPI_Wtime(), cpu_seconds()};
    MPI_Allreduce(MPI_IN_PLACE, data, ELEMENTS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < ELEMENTS; ++i) data[i] *= 1.0f / (float)size;
    spent[0] = MPI_Wtime() - spent[0];
    spent[1] = cpu_seconds() - spent[1];
    double slowest, all;
    MPI_Reduce(&spent[0], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&spent[1], &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank != 0) continue;
    printf("%.9f %.9f\n", slowest, all);
    fflush(stdout);
  }
  free(data);
  free(fresh);
  MPI_Finalize();
  return 0;
}
