/* Bandoneon: push/pull of gradients through compressing parameter servers. The C99 interface.
 *
 * Every function that can fail returns 0 or one of the BDN_... codes below. After a failure
 * bdn_last_error() returns, on the same thread, what happened and what to do next. All functions
 * are thread-safe, except that no call may begin on a worker or cluster once it is being freed. No
 * function calls abort() or exit().
 *
 * A timeout is in seconds; NaN and negative numbers count as 0. Arrays and strings of the caller
 * are borrowed for the call, unless the function says for longer.
 *
 * In a process that was forked from the one that made a worker, every call on the worker that
 * returns a code returns BDN_FAILED_PRECONDITION, and bdn_free does nothing.
 */
#ifndef BANDONEON_H_
#define BANDONEON_H_

/* clang-format off: aligned by hand, for people */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BDN_ABI_VERSION 16
#if defined(__GNUC__)
#define BDN_API __attribute__((visibility("default")))
#else
#define BDN_API
#endif

/* Result codes, equal to absl::StatusCode's. */
enum {
  BDN_OK = 0,
  BDN_CANCELLED = 1,
  BDN_UNKNOWN = 2, /* no answer has said how an exchange ended: see bdn_wait */
  BDN_INVALID_ARGUMENT = 3,
  BDN_DEADLINE_EXCEEDED = 4,
  BDN_NOT_FOUND = 5,
  BDN_ALREADY_EXISTS = 6,
  BDN_PERMISSION_DENIED = 7,
  BDN_RESOURCE_EXHAUSTED = 8,
  BDN_FAILED_PRECONDITION = 9,
  BDN_ABORTED = 10,
  BDN_OUT_OF_RANGE = 11,
  BDN_UNIMPLEMENTED = 12,
  BDN_INTERNAL = 13,
  BDN_UNAVAILABLE = 14,
  BDN_DATA_LOSS = 15,
  BDN_EVICTED = 17 /* the job goes on without this worker: start its process anew */
};

/* Element types. */
enum {
  BDN_FLOAT32 = 0,
  BDN_FLOAT16 = 1,
  BDN_BFLOAT16 = 2,
  BDN_FLOAT64 = 3, /* only with codec "none" */
  BDN_UINT8 = 4,   /* this type and the following ones: only for bdn_broadcast */
  BDN_INT8 = 5,
  BDN_INT16 = 6,
  BDN_INT32 = 7,
  BDN_INT64 = 8,
  BDN_BOOL = 9
};

/* A worker of a job. Owned by the caller from bdn_create to bdn_free. */
typedef struct bdn_worker bdn_worker;
/* A whole job in this process. Owned by the caller until bdn_local_cluster_free. */
typedef struct bdn_cluster bdn_cluster;
/* The number of one bdn_push_pull in flight; 0 is none. */
typedef uint64_t bdn_ticket;

BDN_API int bdn_abi_version(void);
BDN_API const char* bdn_version(void);

/* Returns the message of the last call that failed on this thread; "" if none has failed. Valid
 * until the next call on this thread. */
BDN_API const char* bdn_last_error(void);
/* Returns one fact of that error: "tensor", "step", "stage" (such as encode, exchange, decode) or
 * "waiting_for" ("worker 1", "server 0"). "" if the error has no such fact. Valid until the next
 * call on this thread. */
BDN_API const char* bdn_last_error_field(const char* field);

/* ---- Life ---- */

typedef struct bdn_options {
  size_t struct_size; /* sizeof(bdn_options) */
  /* "name=value" each, which override the environment's BANDONEON_NAME: bdn_settings_help() */
  const char* const* settings;
  size_t num_settings;
} bdn_options;

/* Returns the names, defaults and meanings of a worker's settings. */
BDN_API const char* bdn_settings_help(void);

/* Joins the job and waits until all nodes have joined, for the time of setting join-timeout.
 * BDN_DEADLINE_EXCEEDED names the missing nodes; BDN_INVALID_ARGUMENT names the setting that is
 * wrong. `options` may be NULL. */
BDN_API int bdn_create(const bdn_options* options, bdn_worker** out);

/* Ends every wait with BDN_CANCELLED, waits for the calls in progress on other threads, and frees
 * the worker. A worker that is freed without bdn_leave ends the job for all workers. NULL is
 * ignored. */
BDN_API void bdn_free(bdn_worker* worker);

/* Leaves the job. Waits until the servers have everything that this worker has started, then says
 * that its work is done and waits until all workers have said so: for at most the timeout in all.
 * BDN_DEADLINE_EXCEEDED of the first wait names what is in flight, and nothing has changed; that of
 * the second names the missing workers, and the job is over. From then on, calls that need this
 * worker fail. */
BDN_API int bdn_leave(bdn_worker* worker, double timeout_seconds);

/* Goes at once, and leaves the job to the other workers: they go on as without a lost one (the
 * scheduler's setting min-workers), and hear `reason`. BDN_FAILED_PRECONDITION where they may not:
 * nothing has changed then. For a moment between two steps; afterwards no call but bdn_free may
 * follow. With a process of a host's daemon all of its host go, whoever asks first. */
BDN_API int bdn_depart(bdn_worker* worker, const char* reason);

/* Ends the job for all workers with an error that names this worker and `reason`. */
BDN_API int bdn_abort_job(bdn_worker* worker, const char* reason);

/* Hands the worker over to the end of the process. exit(0) leaves as bdn_leave does, without a
 * timeout, and frees the worker. exit with any other status ends the job with that status and
 * `cause`, the caller's explanation, which may be NULL. A process that ends by a signal or _exit
 * does neither, and so ends the job. No call may be made on the worker afterwards; memory of pushes
 * in flight must stay until the end. */
BDN_API int bdn_leave_at_exit(bdn_worker* worker, const char* cause);

/* Return this worker's rank (-1 for NULL), and the number of workers (0 for NULL). Where the job
 * goes on without workers that were lost (the scheduler's setting min-workers) these do not count,
 * from the moment on at which this worker has heard of the loss. */
BDN_API int bdn_rank(const bdn_worker* worker);
BDN_API int bdn_size(const bdn_worker* worker);
/* Returns the number of workers that have joined (0 for NULL): all ranks are below it, whoever is
 * lost later. */
BDN_API int bdn_joined_size(const bdn_worker* worker);
/* Returns the lowest rank among them (-1 for NULL). */
BDN_API int bdn_first_rank(const bdn_worker* worker);
/* Returns how many of these ranks were not lost, as far as this worker has heard, and gives the
 * lowest of them in *first (may be NULL), -1 where there is none. 0: `ranks` is no list of ranks,
 * as bdn_last_error says. */
BDN_API int bdn_size_among(const bdn_worker* worker, const int32_t* ranks, size_t num_ranks,
                           int32_t* first);

/* ---- A whole cluster in this process: for tests, sweeps and one-machine experiments ---- */

/* Makes a scheduler and servers on threads of this process, joined by a loopback transport. The
 * settings, given as for bdn_create, are "workers=4", "servers=2", "seed=7" and the others of the
 * scheduler. */
BDN_API int bdn_local_cluster_create(const bdn_options* options, bdn_cluster** out);
/* Does what bdn_create does, within `cluster`. It waits until all of the cluster's workers were
 * created, so call it from one thread for each. A cluster that is freed before its workers, or
 * while they are being created, ends with the last of them. */
BDN_API int bdn_create_local(bdn_cluster* cluster, const bdn_options* options, bdn_worker** out);
/* Frees a cluster. NULL is ignored. */
BDN_API void bdn_local_cluster_free(bdn_cluster* cluster);

/* ---- Tensors ---- */

enum {
  BDN_FUSE = 1
}; /* bdn_declaration.flags: the tensor may share a frame with its neighbours of this call */

typedef struct bdn_declaration {
  size_t struct_size; /* sizeof(bdn_declaration) */
  const char* name;   /* unique in the job */
  uint64_t elements;
  int32_t dtype; /* BDN_FLOAT32, BDN_FLOAT16, BDN_BFLOAT16 or BDN_FLOAT64 */
  uint32_t flags;
  const char* push;      /* the codec of pushes, as bdn_codecs_help() says; NULL for "none" */
  const char* pull;      /* the codec of replies; NULL for "none" */
  uint64_t warmup_steps; /* so many first steps go uncompressed */
  float momentum;        /* applied before error feedback; 0 for none. Needs push = ef(...) */
  uint32_t group;        /* only tensors of one group are fused, as they share a learning rate */
  const char* rule;      /* the servers' update rule: bdn_rules_help(). NULL for "mean" */
  /* The ranks of the workers that exchange the tensor, in any order; this worker's is among them.
   * NULL for all workers. Means and sums are over these workers, and no other one declares the
   * tensor, sends or is sent anything of it, or holds memory for it. */
  const int32_t* ranks;
  size_t num_ranks;
} bdn_declaration;

/* Declares tensors in forward order, and waits until all workers of their ranks have declared the
 * same ones (in any order) and the servers are ready. ids[i] gets the number of tensors[i] for
 * later calls. The n-th call of each worker with tensors of the same ranks belongs to the n-th
 * calls of the others of these; tensors of several groups of ranks may go in one call. A tensor
 * that was declared before with the same facts is answered at once. BDN_INVALID_ARGUMENT names a
 * conflict and both workers, or shows what is wrong with a spec. BDN_NOT_FOUND: a candidate
 * declares what the others have not declared, yet. */
BDN_API int bdn_declare(bdn_worker* worker, const bdn_declaration* tensors, size_t count,
                        uint32_t* ids, double timeout_seconds);

/* Gives the ranks of the servers that now sum the parts of a tensor, in the order of the parts; -1
 * for a part whose server is lost and that no other one has taken over. `*count` is how many parts
 * there are; of these the first `capacity` are written. BDN_NOT_FOUND: no such tensor is declared.
 * BDN_UNIMPLEMENTED for a process that takes part through its host's daemon. */
BDN_API int bdn_servers_of(bdn_worker* worker, uint32_t tensor, int32_t* ranks, size_t capacity,
                           size_t* count);

/* Retires tensors of this worker: their ids name nothing from now on, and a declaration of their
 * names, by all workers, declares new tensors, at step 0 and without residuals or momenta. When all
 * workers have retired the tensors, or are leaving, the servers free the tensors' memory. Never
 * waits: exchanges in flight go on and can be waited for, pushes that have not begun end with
 * BDN_CANCELLED, and ids that name nothing are ignored. BDN_INVALID_ARGUMENT: a tensor is fused
 * with others that are not among these; then nothing has changed. */
BDN_API int bdn_retire(bdn_worker* worker, const uint32_t* ids, size_t count);

enum {
  /* bdn_push.flags: there is no gradient this step; data is only written. With data NULL the result
   * is not sent to this worker: 96 bytes for each partition or group go each way, and bdn_result
   * says BDN_RESULT_ABSENT only if no worker had a gradient of anything that shares the frame. */
  BDN_ABSENT = 1
};

/* bdn_push.device. BDN_CUDA(n) is GPU n of CUDA in this process (PyTorch's cuda:n). */
#define BDN_HOST 0
#define BDN_CUDA(n) (1 + (n))

typedef struct bdn_push {
  size_t struct_size; /* sizeof(bdn_push) */
  void* data;      /* the elements, of the declared type, contiguous; read, then overwritten. NULL
                      with BDN_ABSENT if the result is not wanted; then it is not sent */
  uint32_t tensor; /* from bdn_declare */
  uint32_t flags;
  /* Higher goes first, among the pushes that wait here and at the servers. The reply has the
   * highest priority of the step's pushes. No result depends on it. */
  int32_t priority;
  int32_t device; /* the memory of data: BDN_HOST, or BDN_CUDA(n) for a GPU's */
  void* stream;   /* for a GPU, its CUstream or cudaStream_t; NULL is the default stream. The
                     exchange begins when the stream's earlier work is done. NULL for the host */
  float weight;   /* of this worker's contribution, >= 0, usually 1 */
  /* data holds gradients times this, and the result comes back times this; usually 1 */
  float loss_scale;
  float learning_rate; /* for update rules and codecs that need it, else 0 */
  /* 1 + the number of steps that this program had finished when it pushed; 0: not known. A round in
   * which two workers' numbers differ fails for all with BDN_INVALID_ARGUMENT, which names both. */
  uint32_t program_steps;
  /* Optional, float32[elements]: gets what the codec leaves out of this push, data (times weight /
   * loss_scale) minus the decoded payload. Only if push has neither ef(...) nor momentum, and only
   * for the host. Must stay valid as long as data. */
  float* left_out;
  /* Optional. Called on a thread of the library once the result is in data. It must neither block
   * nor free the worker. It gives the ticket up: bdn_wait must not be called for it. */
  void (*done)(void* user_data, bdn_ticket ticket, int code);
  void* user_data;
} bdn_push;

/* Starts the exchange of one tensor, in place, and returns at once. `data` must stay valid and
 * untouched until the ticket is done. A second call for a tensor before the first is done queues
 * behind it. Fused tensors wait for each other's push of the same step. The call does not wait for
 * a GPU, and opens NVIDIA's driver at the first push of a GPU's tensor. BDN_NOT_FOUND: there is no
 * driver, or no such GPU. BDN_FAILED_PRECONDITION: the stream is being captured into a graph. Other
 * errors in the numbers of a GPU's push are returned by bdn_wait. */
BDN_API int bdn_push_pull(bdn_worker* worker, const bdn_push* push, bdn_ticket* ticket);
/* Does what `count` calls of bdn_push_pull do, in order, at the cost of one. *started (may be NULL)
 * gets how many are in flight, with tickets[0] to tickets[*started - 1]. The error is that of the
 * next one, at which the call stopped. */
BDN_API int bdn_push_pull_all(bdn_worker* worker, const bdn_push* pushes, size_t count,
                              bdn_ticket* tickets, size_t* started);

enum {
  BDN_RESULT_ABSENT = 1,   /* no worker had a gradient: data is unchanged */
  BDN_RESULT_NONFINITE = 2 /* some worker's gradient held NaN or infinity: data is all NaN */
};

typedef struct bdn_result {
  size_t struct_size; /* sizeof(bdn_result), set by the caller */
  uint64_t step;
  uint32_t flags;
  /* So many elements of data are guesses, because the reply does not determine them: with the codec
   * exactsketch, which then had too few cells for what was not zero. Else 0. */
  uint32_t guessed;
} bdn_result;

/* Waits for a ticket and gives it up. `result` may be NULL.
 *
 * BDN_DEADLINE_EXCEEDED: it is still in flight and the ticket is still valid; the error names what
 * it waits for. BDN_UNKNOWN: the server owed the answer for the time of setting wait-timeout (which
 * does not run while the server waits for other workers), or refused the push too often, as not
 * yet possible or as damaged, and it is not known whether the servers have counted it; data is the
 * caller's again. The worker finds that out: further pushes of the tensor wait until then (and end
 * the job if they wait in vain for as long), and with push = ef(...) a push that was not counted
 * goes with the next one. Any other error: the exchange failed, nothing of it was counted, and data
 * is unspecified. */
BDN_API int bdn_wait(bdn_worker* worker, bdn_ticket ticket, double timeout_seconds,
                     bdn_result* result);
/* Does what a bdn_wait for each of `count` tickets does, in order, with one timeout for all. *ended
 * (may be NULL) gets how many have ended well and were given up; results[0] to results[*ended - 1]
 * get their results (`results` may be NULL). The error is that of the next ticket, at which the
 * call stopped; the tickets behind it are unchanged. */
BDN_API int bdn_wait_all(bdn_worker* worker, const bdn_ticket* tickets, size_t count,
                         double timeout_seconds, bdn_result* results, size_t* ended);

/* Does what bdn_wait does, but for a GPU's tensor it returns as soon as the result has come to this
 * worker: work put into `stream` (as bdn_push.stream; of any GPU) from now on waits until the
 * result is in the GPU's memory, and the CPU does not wait. For a tensor of the host it is
 * bdn_wait. */
BDN_API int bdn_wait_stream(bdn_worker* worker, bdn_ticket ticket, void* stream,
                            double timeout_seconds, bdn_result* result);
/* Does the same for several tickets, as bdn_wait_all; streams[i] belongs to tickets[i]. */
BDN_API int bdn_wait_stream_all(bdn_worker* worker, const bdn_ticket* tickets, void* const* streams,
                                size_t count, double timeout_seconds, bdn_result* results,
                                size_t* ended);

/* Allocates memory, 64-byte aligned, in which gradients are best made. A process that takes part
 * through its host daemon (setting attach) shares this memory with the daemon, and pushes from it
 * are not copied; for any other worker it is ordinary memory. BDN_RESOURCE_EXHAUSTED: there is no
 * more. bdn_free_memory frees it, on any thread, also after bdn_free; NULL is ignored. */
BDN_API int bdn_alloc(bdn_worker* worker, uint64_t bytes, void** out);
BDN_API void bdn_free_memory(void* memory);

/* Writes the name of a broadcast or of a barrier that is of these ranks alone, in any order: only
 * they call it, and `root` is one of them. It is "NAME among ranks 0-3, 8"; a name of any origin
 * that ends so means the same. Returns the size that it needs, with the terminating 0; at most
 * `capacity` bytes are written. 0: `name` or `ranks` is wrong, as bdn_last_error says. */
BDN_API size_t bdn_name_among(const char* name, const int32_t* ranks, size_t num_ranks, char* out,
                              size_t capacity);

/* Overwrites `data` (of `bytes` bytes and any element type) with the root's, on every worker. Parts
 * that a worker has already, by their SHA-256, are not sent to it. Each name with its size is
 * declared at its first use, and stays declared. All workers must call it in the same order. */
BDN_API int bdn_broadcast(bdn_worker* worker, const char* name, void* data, uint64_t bytes,
                          int root, double timeout_seconds);

/* Some bytes of a broadcast. */
typedef struct bdn_bytes {
  void* data;
  uint64_t bytes;
} bdn_bytes;
/* What a worker has of a broadcast's value before it comes. */
enum {
  BDN_HOLDS_UNKNOWN = 0, /* as bdn_broadcast: parts that it has already are not sent */
  BDN_HOLDS_NOTHING = 1, /* all is sent, and nothing is hashed */
  BDN_HOLDS_VALUE = 2    /* it takes part, is sent nothing; data stays as it is, and may be NULL */
};
/* Does what bdn_broadcast does with bytes that lie in `count` places, which together are one value.
 * Each worker may cut it in its own way. `holds` is one of BDN_HOLDS_..., of this worker; the
 * root's is not looked at. */
BDN_API int bdn_broadcast_parts(bdn_worker* worker, const char* name, const bdn_bytes* parts,
                                size_t count, int root, int holds, double timeout_seconds);

/* Returns the CRC-32C of some bytes, at the speed of memory. Workers that are to hold the same
 * bytes may compare it. That of no bytes, and of NULL, is 0. */
BDN_API uint32_t bdn_crc32c(const void* data, uint64_t bytes);

/* Waits until all workers have called it with this name. */
BDN_API int bdn_barrier(bdn_worker* worker, const char* name, double timeout_seconds);
/* Waits like bdn_barrier, and gives the ranks of the workers that are present, rising: the same to
 * all who met. `*count` is how many there are; of these the first `capacity` are written. Once a
 * worker was lost its rank is vacant, and others keep theirs. */
BDN_API int bdn_meet(bdn_worker* worker, const char* name, double timeout_seconds, int32_t* ranks,
                     size_t capacity, size_t* count);

/* Returns 1 while this worker has joined a job that runs and was not taken in yet, else 0 (0 for
 * NULL). Such a candidate has the rank of a worker that was lost. It declares what the others have
 * declared, by name: in any calls and order, of each tensor the same (else BDN_INVALID_ARGUMENT);
 * what they have not is refused alike. Then it comes to a boundary. What it has not declared by
 * then it may declare later, without the others. Until it is taken in there its barriers and
 * broadcasts return at once, and leave the data as it is; calls that set the state of tensors do
 * nothing; pushes, and calls that read from servers, are BDN_FAILED_PRECONDITION; what it retires
 * counts once it is taken in. */
BDN_API int bdn_is_candidate(const bdn_worker* worker);
/* Returns how many candidates wait at the boundary, as far as this worker has heard (0 for NULL):
 * for a look between two steps. Workers hear of it at different moments, so they must agree before
 * they go to a boundary. */
BDN_API int bdn_candidates(const bdn_worker* worker);
/* Waits until all workers that are present have called it, between two steps: nothing of this
 * worker may be in flight (BDN_FAILED_PRECONDITION). Candidates that wait here, too, are taken in
 * then; nobody waits for a candidate. Gives the ranks of the newcomers, rising, as bdn_meet gives
 * its own: the same to all who met, also to the newcomers, for which the call waits until they are
 * taken in. From then on a newcomer's pushes are those of the same steps as the others'; what its
 * tensors hold is its own. Processes of a host's daemon call it together, and come in together. */
BDN_API int bdn_boundary(bdn_worker* worker, double timeout_seconds, int32_t* newcomers,
                         size_t capacity, size_t* count);

/* Gives the ranks that come and go together with `rank`: those of the processes of its host's
 * daemon, from `*first` on, `*count` of them; itself alone where it takes part without one. They
 * stay the same for the whole job, whoever is present. */
BDN_API int bdn_host_ranks(const bdn_worker* worker, int rank, int* first, int* count);

/* Reports a value of this program, such as its loss of a step, for the scheduler's status page. The
 * value goes with the next heartbeat; the call never waits. `name` has 1 to 64 bytes of printable
 * ASCII without quotes, backslashes and spaces; a job has at most 64 names. A value that is not
 * finite is shown as a gap. Several workers' values of one step are shown as their mean. */
BDN_API int bdn_report(bdn_worker* worker, const char* name, uint64_t step, double value);

/* ---- Recordings ---- */

/* A span of the program, for the recording that every worker makes (docs/trace_format.md). */
enum {
  BDN_MARK_STEP = 32,
  BDN_MARK_FORWARD = 33,
  BDN_MARK_READY = 34,
  BDN_MARK_WAITING = 35,
  BDN_MARK_OPTIMIZER = 36,
  BDN_MARK_COLLECTION = 37,
  BDN_MARK_INPUT = 38,
  BDN_MARK_USER = 39,
  BDN_MARK_BACKWARD = 40
};
#define BDN_NO_TENSOR UINT32_MAX

typedef struct bdn_mark {
  size_t struct_size; /* sizeof(bdn_mark) */
  int64_t begin_ns;   /* of CLOCK_MONOTONIC */
  uint64_t wall_ns;   /* 0: an instant */
  uint64_t cpu_ns;    /* CPU time of its thread in it; 0 if not measured */
  uint64_t queued_ns; /* time that its thread was ready to run and did not; 0 if not measured */
  uint64_t step;      /* of the program; 0: none */
  uint32_t tensor;    /* of BDN_MARK_READY; else BDN_NO_TENSOR */
  uint32_t kind;      /* BDN_MARK_STEP, ... */
  const char* text;   /* of BDN_MARK_USER, up to 255 bytes; else NULL */
} bdn_mark;

/* Returns 1 where this worker records (settings recorder-bytes and trace), 0 where marks would do
 * nothing. */
BDN_API int bdn_records(const bdn_worker* worker);
/* Records marks. Costs some 50 ns each and never waits. BDN_INVALID_ARGUMENT: a mark is wrong, and
 * none was recorded. */
BDN_API int bdn_marks(bdn_worker* worker, const bdn_mark* marks, size_t count);
/* Writes what this worker has recorded to a new file of a directory, which is made if its parent
 * is there. Copies the file's path, as bdn_check_codec does its text; `path` may be NULL.
 * BDN_FAILED_PRECONDITION: nothing is recorded. */
BDN_API int bdn_write_recording(bdn_worker* worker, const char* directory, char* path,
                                size_t capacity);

/* ---- Weights that servers hold ---- */

/* With a rule other than "mean" the servers hold the weights: a push brings a gradient (or, for
 * outer rules, the difference that local steps made), and its result is the new weights. One rank
 * sets the weights before any worker pushes; then every worker fetches them, which also sets the
 * replica on which delta and sign replies build. */

/* Returns the update rules with their options and defaults, a line each. */
BDN_API const char* bdn_rules_help(void);
/* Checks a rule. `canonical` (may be NULL) gets its canonical form, at most `capacity` bytes with
 * the final NUL. BDN_INVALID_ARGUMENT shows what is wrong. */
BDN_API int bdn_check_rule(const char* rule, char* canonical, size_t capacity);

/* Reads the weights as every worker holds them: float32[elements]. BDN_DEADLINE_EXCEEDED: no worker
 * has set them yet. */
BDN_API int bdn_fetch_weights(bdn_worker* worker, uint32_t tensor, float* out, uint64_t elements,
                              double timeout_seconds);

/* Does the same where `weights` may already hold the same values, as for a model that every worker
 * has made from one seed: parts that are equal by their SHA-256 are not sent, and stay as they are.
 * A process with a host daemon is sent all of them. */
BDN_API int bdn_sync_weights(bdn_worker* worker, uint32_t tensor, float* weights, uint64_t elements,
                             double timeout_seconds);

/* Read and set a part of the state that the servers hold of a tensor, float32[elements]: "weights";
 * "replica" (pull = delta(...)); "residual" (pull = ef(...)); "moment0", "moment1" (of the rule).
 * BDN_NOT_FOUND: this tensor has no such part. Only between steps. Setting is for one rank, always
 * the same. It also sets the step at which the servers stand, and weights set the replica, too: so
 * set the weights first. */
BDN_API int bdn_get_server_state(bdn_worker* worker, uint32_t tensor, const char* what, float* out,
                                 uint64_t elements, double timeout_seconds);
BDN_API int bdn_set_server_state(bdn_worker* worker, uint32_t tensor, const char* what,
                                 const float* in, uint64_t elements, uint64_t step,
                                 double timeout_seconds);
/* Read and set how often the servers have updated the tensor, and the learning rate of the step
 * that left their residual. Setting is as for bdn_set_server_state. */
BDN_API int bdn_get_server_counters(bdn_worker* worker, uint32_t tensor, uint64_t* updates,
                                    float* previous_learning_rate, double timeout_seconds);
BDN_API int bdn_set_server_counters(bdn_worker* worker, uint32_t tensor, uint64_t updates,
                                    float previous_learning_rate, uint64_t step,
                                    double timeout_seconds);
/* Replaces the update rule of these tensors from the next step on by another of the declared rule's
 * kind: "adamw(beta1=0.85)" after "adamw(beta1=0.95)". For the rank that sets state, between steps,
 * while no worker pushes the tensors. BDN_INVALID_ARGUMENT shows what is wrong with the rule.
 * BDN_NOT_FOUND: the servers step these tensors by no rule that may change (mean, sign_momentum).
 * If one tensor's rule is refused, others may have been replaced. */
BDN_API int bdn_set_server_rule(bdn_worker* worker, const uint32_t* tensors, size_t count,
                                const char* rule, double timeout_seconds);

/* ---- Tables of rows ---- */

/* A table holds rows of `width` float32 by 64-bit id, at the servers only. A step pushes the
 * gradients of the rows that a worker has touched, and brings the rows that it wants next. A row
 * that nobody has pushed keeps its value and its moments, and takes no memory before its first
 * update. docs/rows.md explains what follows from that. */

typedef struct bdn_table {
  size_t struct_size; /* sizeof(bdn_table) */
  const char* name;   /* unique in the job, among tensors, too */
  uint64_t rows;      /* ids are below it; 0: any id */
  uint32_t width;     /* elements of a row, 1 to 1024 */
  uint32_t group;     /* of one declaration, group, width and specs, tables share frames */
  const char* rule;   /* the servers' update rule, or "mean"; NULL for "sgd" */
  const char* push;   /* the codec of each gradient row; NULL for "none" */
  const char* pull;   /* the codec of each row that is told, rounding to nearest; NULL for "none" */
  const char* init;   /* a row's first value: "zeros" (NULL), "constant", "uniform", "normal" */
  double init_value;  /* the constant, the bound or the deviation of that; 0 for "zeros" */
  uint64_t expect_rows; /* so many rows are expected, for placement and memory; 0: not known */
  /* A row is stored once so many updates, the last included, had a gradient of it; those before
   * drop theirs. 0 and 1: at the first. 2^20 at most. */
  uint64_t admit;
  uint64_t max_rows; /* that are held at once, 64 or more for each bucket; 0: any number */
  /* Which rows make room in a table that has max_rows: "none" (NULL): the step fails; "lru": those
   * that were updated longest ago; "lfu": those that were updated least often. */
  const char* evict;
  uint64_t ttl; /* a row without one in so many updates of the table is removed; 0: never */
} bdn_table;

/* Declares tables, as bdn_declare does tensors. BDN_UNIMPLEMENTED for a process that takes part
 * through its host's daemon. */
BDN_API int bdn_declare_tables(bdn_worker* worker, const bdn_table* tables, size_t count,
                               uint32_t* ids, double timeout_seconds);

typedef struct bdn_rows {
  size_t struct_size; /* sizeof(bdn_rows) */
  /* Of the gradients, in any order, an id as often as it was touched. NULL in a push that wants
   * nothing either: the table takes part without a gradient. An empty list is a gradient of no
   * rows, which counts as an update. */
  const uint64_t* ids;
  size_t num_ids;
  const float* gradients; /* float32[num_ids][width]; those of one id are added in their order */
  const uint64_t* wanted; /* ids, in any order */
  size_t num_wanted;
  float* out; /* gets the wanted rows, float32[num_wanted][width]; valid until the ticket is done */
  uint32_t table; /* from bdn_declare_tables */
  uint32_t reserved;
} bdn_rows;

typedef struct bdn_rows_step {
  size_t struct_size;     /* sizeof(bdn_rows_step) */
  float weight;           /* of this worker's gradients in the mean, usually 1 */
  float loss_scale;       /* the gradients are times this; usually 1 */
  float learning_rate;    /* the same at all workers */
  uint32_t program_steps; /* as of bdn_push */
  int32_t priority;       /* as of bdn_push */
  uint32_t reserved;
} bdn_rows_step;

/* Starts a step of tables and returns at once; bdn_wait waits for its ticket. Gradients and ids are
 * read before it returns. The mean counts every worker's weight, also of those that have no
 * gradient of a row. Every worker must step each group of tables equally often: tables that are not
 * among `rows` but share frames with one that is take part without rows. A gradient that is not
 * finite leaves the step out at all workers (BDN_RESULT_NONFINITE), and the wanted rows come as
 * they were. BDN_INVALID_ARGUMENT names table, id and position, and nothing was sent. */
BDN_API int bdn_push_rows(bdn_worker* worker, const bdn_rows_step* step, const bdn_rows* rows,
                          size_t count, bdn_ticket* ticket);
/* Of a table whose rule is "mean" the servers hold no rows: nothing is set or fetched. A worker
 * that wants rows gets their means in `out`, zeros for those that nobody has pushed. Who wants none
 * gets the means of all rows that any worker has pushed in a step: once the ticket of the last step
 * is done, this copies those of one table: uint64[count], rising, and float32[count][width]. It
 * copies nothing, and sets `count` alone, where `room`, in rows, is less. BDN_NOT_FOUND: no worker
 * has pushed anything of the table in that step. */
BDN_API int bdn_summed_rows(bdn_worker* worker, uint32_t table, uint64_t room, uint64_t* ids,
                            float* rows, uint64_t* count);
/* Fetches the wanted rows as the servers have them now. num_ids is 0. */
BDN_API int bdn_fetch_rows(bdn_worker* worker, const bdn_rows* rows, size_t count,
                           bdn_ticket* ticket);
/* Sets rows, which are `gradients`, each id once, with fresh moments. For one rank, always the
 * same, while no worker steps the table. num_wanted is 0. BDN_INVALID_ARGUMENT: a table with admit,
 * max_rows or ttl, whose rows begin with the values of its init. */
BDN_API int bdn_set_rows(bdn_worker* worker, const bdn_rows* rows, bdn_ticket* ticket);

/* A record is all that a server holds of a row: float32[width], its value; float32[moments]; and
 * uint32[2]: the updates of the row, and those of the table when the row was changed last, that one
 * included. A table's records, from all of its buckets, are the table: they may be set in a job
 * with another number of workers, servers and buckets. */
typedef struct bdn_table_layout {
  size_t struct_size; /* sizeof(bdn_table_layout) */
  uint32_t width;
  uint32_t moments; /* floats that the rule keeps of a row */
  uint32_t buckets;
  uint32_t is_limited; /* 1: it has admit, max_rows or ttl, so that all lists tell something */
} bdn_table_layout;
BDN_API int bdn_get_table_layout(bdn_worker* worker, uint32_t table, bdn_table_layout* layout);

/* The lists of a table. Of the last two a record is uint32[2] alone: of a candidate, an id that is
 * not admitted yet, the updates that had a gradient of it, and those of the table at the last of
 * them; of a removed id, 1 where it was a row and 0 where it was a candidate, and the updates of
 * the table when it was removed. An id that is a row again is in the last list no more. */
#define BDN_LIST_ROWS 0
#define BDN_LIST_CANDIDATES 1
#define BDN_LIST_REMOVED 2

/* A piece of the records of one list of a bucket of a table. */
typedef struct bdn_row_scan {
  size_t struct_size; /* sizeof(bdn_row_scan) */
  uint32_t table;     /* from bdn_declare_tables */
  uint32_t bucket;    /* 0 to buckets - 1 */
  uint64_t cursor;    /* 0, then as the piece before has left it; the next cursor, 0 at the end */
  uint64_t since;     /* records changed after so many updates of the table; 0: all */
  uint64_t room;      /* for so many records, 1 or more */
  uint64_t* ids;      /* gets uint64[count], rising */
  void* records;      /* gets the records, one after the other */
  uint64_t count;     /* gets the number that came; it may be 0 before the end */
  uint64_t updates;   /* gets the updates of the table */
  uint64_t complete_since; /* of BDN_LIST_REMOVED: gets the updates since which none is forgotten */
  uint32_t list;           /* BDN_LIST_... */
  uint32_t reserved;
} bdn_row_scan;
/* Fetches the next piece of a scan, which must stay where it is until the ticket is done. What
 * comes is as it is now: for a whole table, no worker may step it between the pieces. */
BDN_API int bdn_scan_rows(bdn_worker* worker, bdn_row_scan* scan, bdn_ticket* ticket);

typedef struct bdn_row_records {
  size_t struct_size;  /* sizeof(bdn_row_records) */
  uint32_t table;      /* from bdn_declare_tables */
  uint32_t replaces;   /* 1: all that the servers hold of the table is forgotten first */
  uint64_t updates;    /* that the table counts from then on */
  const uint64_t* ids; /* each once, in any order */
  uint64_t num_ids;
  const void* records; /* num_ids records, one after the other */
  uint32_t list;       /* BDN_LIST_... */
  uint32_t reserved;
} bdn_row_records;
/* Sets records while no worker steps the table: an id that is set in one list is then in no other.
 * Several ranks may set records, of rows that are different ones. BDN_INVALID_ARGUMENT names table
 * and row; other records may have been set then.
 */
BDN_API int bdn_set_row_records(bdn_worker* worker, const bdn_row_records* records,
                                bdn_ticket* ticket);

/* ---- State and statistics ---- */

/* Read and set a part of the state that this worker keeps of a tensor: the residual of its pushes'
 * error feedback ("residual"), the momentum before that ("momentum"), or the weights on which
 * replies build ("replica"): float32[elements], zeros where there is none yet. Or the learning rate
 * of the step that left the residual ("learning_rate"): float32[1], with elements = 1. REQUIRES: no
 * exchange of the tensor is in flight, else BDN_FAILED_PRECONDITION. */
BDN_API int bdn_get_state(bdn_worker* worker, uint32_t tensor, const char* what, float* out,
                          uint64_t elements);
BDN_API int bdn_set_state(bdn_worker* worker, uint32_t tensor, const char* what, const float* in,
                          uint64_t elements);
/* Read and set the number of the tensor's exchanges so far. Setting it is for going on from a
 * checkpoint: set it on every worker, and at the servers, too. BDN_INVALID_ARGUMENT: the tensor is
 * past that step. */
BDN_API int bdn_get_step(bdn_worker* worker, uint32_t tensor, uint64_t* step);
BDN_API int bdn_set_step(bdn_worker* worker, uint32_t tensor, uint64_t step);

/* Writes the worker's counters as a JSON object. Its member "stages", unless setting stage-times is
 * off, has for each phase of a key's way {"items", "bytes", "wall_ns", "cpu_ns"}, which
 * docs/thread_model.md explains. Its member "quality", unless setting quality-every is 0, tells
 * what the pushes' error feedback leaves out, as docs/metrics.md explains. Returns the bytes of the
 * whole text with its final NUL, and writes at most `capacity` of them. 0: there are no counters,
 * and bdn_last_error() says why. */
BDN_API size_t bdn_stats_json(bdn_worker* worker, char* out, size_t capacity);

/* Formats `message` as a line of the library's log, for a program whose log is to match: the JSON
 * object that the library writes with setting log-format=json, with job, node, rank, epoch and step
 * where they are known, without the line's end. `level` is "debug", "info", "warning" or "error";
 * any other counts as "info". `unix_seconds` is when it happened. Returns as bdn_stats_json does,
 * and 0 while log-format is text. */
BDN_API size_t bdn_json_log_line(const char* level, const char* message, double unix_seconds,
                                 char* out, size_t capacity);

/* Writes the scheduler's view of the job as a JSON object, without joining the job. Uses the
 * settings scheduler, token, token-file, tls-ca, tls-cert, tls-key and insecure. *needed (may be
 * NULL) gets the bytes of the whole text with its final NUL; at most `capacity` are written. */
BDN_API int bdn_status_json(const bdn_options* options, double timeout_seconds, char* out,
                            size_t capacity, size_t* needed);

/* One node of a dump. Its strings and bytes are valid during the callback. */
typedef struct bdn_dumped_node {
  const char* job;
  const char* role; /* "server" or "worker" */
  const char* host;
  int32_t rank;
  uint32_t node; /* its number in the job */
  /* BDN_OK: the recording is whole; BDN_DEADLINE_EXCEEDED: the node was silent, as a stopped one
   * is; else a failure. The text says it, and is "" where there is none. */
  int32_t code;
  uint32_t nodes;          /* of the dump */
  uint32_t nodes_left_out; /* were asked for, too, and are more than a dump may have: 64 */
  uint32_t reserved;
  const char* failure;
  /* Its recording (docs/trace_format.md), of which nothing is checked: the node may have sent
   * anything. It is cut off where there is a failure. */
  const void* recording;
  uint64_t recording_bytes;
} bdn_dumped_node;
/* Asks the scheduler, without joining the job, for the latest records of its nodes, at most 1 MiB
 * each, and calls `take` on this thread with each node that has sent them, failed, or sent nothing
 * for `patience_seconds`. `nodes` names them ("worker-0..7,servers"); NULL or "": all. Of each node
 * come the records of its last `last_seconds`; 0: all that fit. Settings as for bdn_status_json.
 * BDN_FAILED_PRECONDITION: the job does not run, or another dump of it does. BDN_NOT_FOUND: it has
 * none of the nodes. */
BDN_API int bdn_dump_traces(const bdn_options* options, const char* nodes, double last_seconds,
                            double patience_seconds,
                            void (*take)(void* context, const bdn_dumped_node* node),
                            void* context);

/* Writes a line for each GPU whose tensors bdn_push can push, with whether it encodes, or a line
 * that says why there is none. Opens the driver (setting cuda-driver). `needed` and `capacity` are
 * as for bdn_status_json. */
BDN_API int bdn_describe_devices(const bdn_options* options, char* out, size_t capacity,
                                 size_t* needed);

/* Checks a codec spec. `canonical` (may be NULL) gets its canonical form, at most `capacity` bytes
 * with the final NUL. BDN_INVALID_ARGUMENT shows what is wrong. */
BDN_API int bdn_check_codec(const char* spec, char* canonical, size_t capacity);

/* Returns the codecs with their options and defaults, a line each. */
BDN_API const char* bdn_codecs_help(void);

/* Traits of a codec spec. */
enum {
  /* The decoded values are the encoded ones, bit for bit (float32). */
  BDN_CODEC_LOSSLESS = 1,
  /* A reply by the same codec loses nothing of a sum of pushes. */
  BDN_CODEC_CARRIES_SUMS = 2,
  /* Servers add payloads without decoding them. */
  BDN_CODEC_ADDS_ENCODED = 4,
  /* All workers draw the same elements to send. */
  BDN_CODEC_SHARES_DRAW = 8,
  /* ef(...): the sender keeps what a payload leaves out, and sends it later. */
  BDN_CODEC_ERROR_FEEDBACK = 16,
  /* ef(..., correction=lr): pushes need a learning rate. */
  BDN_CODEC_LEARNING_RATE_CORRECTION = 32,
  /* delta(...): for pulling weights that servers hold. */
  BDN_CODEC_DELTA = 64,
  /* The codec changes with the step. */
  BDN_CODEC_SCHEDULE = 128
};
/* Sets *traits to the BDN_CODEC_... of a spec, or-ed. A schedule has the first four traits if all
 * of its periods have them, and those of error feedback or delta that its last period has.
 * BDN_INVALID_ARGUMENT as for bdn_check_codec. */
BDN_API int bdn_codec_traits(const char* spec, uint32_t* traits);

#ifdef __cplusplus
}
#endif

#endif /* BANDONEON_H_ */
