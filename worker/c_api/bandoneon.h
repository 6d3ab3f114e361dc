/* Bandoneon: push/pull of gradients through compressing parameter servers. The C99 interface.
 *
 * Every function that can fail returns 0 or one of BDN_... below, and then bdn_last_error() says,
 * on the same thread, what happened and what to do next. All functions are thread-safe, except that
 * no call may begin on a worker or cluster once it is being freed. No function calls abort() or
 * exit().
 *
 * In a process forked from the one that made a worker, every call on it returns
 * BDN_FAILED_PRECONDITION and bdn_free does nothing.
 */
#ifndef BANDONEON_H_
#define BANDONEON_H_

/* clang-format off: aligned by hand, for people */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BDN_ABI_VERSION 10
#if defined(__GNUC__)
#define BDN_API __attribute__((visibility("default")))
#else
#define BDN_API
#endif

/* Codes, equal to absl::StatusCode's. */
enum {
  BDN_OK = 0,
  BDN_CANCELLED = 1,
  BDN_UNKNOWN = 2, /* an exchange had no answer that settles it: bdn_wait */
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
  BDN_DATA_LOSS = 15
};

/* Element types. */
enum {
  BDN_FLOAT32 = 0,
  BDN_FLOAT16 = 1,
  BDN_BFLOAT16 = 2,
  BDN_FLOAT64 = 3, /* codec "none" only */
  BDN_UINT8 = 4,   /* this and the following: bdn_broadcast only */
  BDN_INT8 = 5,
  BDN_INT16 = 6,
  BDN_INT32 = 7,
  BDN_INT64 = 8,
  BDN_BOOL = 9
};

typedef struct bdn_worker bdn_worker;
typedef struct bdn_cluster bdn_cluster;
typedef uint64_t bdn_ticket; /* one bdn_push_pull in flight; 0 is none */

BDN_API int bdn_abi_version(void);
BDN_API const char* bdn_version(void);

/* What the last failing call on this thread said; "" if none failed. Valid until the next call. */
BDN_API const char* bdn_last_error(void);
/* One fact of it: "tensor", "step", "stage" (encode, exchange, decode), "waiting_for" ("worker 1",
 * "server 0"). "" where it does not apply. Valid until the next call. */
BDN_API const char* bdn_last_error_field(const char* field);

/* ---- Life ---- */

typedef struct bdn_options {
  size_t struct_size; /* sizeof(bdn_options) */
  const char* const*
      settings; /* "name=value" each, over the environment's BANDONEON_NAME; bdn_settings_help() */
  size_t num_settings;
} bdn_options;

/* The names, defaults and meanings of the settings of a worker. */
BDN_API const char* bdn_settings_help(void);

/* Joins the job and waits until all nodes have joined. BDN_DEADLINE_EXCEEDED names who is missing;
 * BDN_INVALID_ARGUMENT names the setting. `options` may be NULL. */
BDN_API int bdn_create(const bdn_options* options, bdn_worker** out);

/* Ends every wait with BDN_CANCELLED, waits for the calls that other threads are inside of, and gives
 * everything back. Leave first to part in peace: freed
 * without bdn_leave, a worker ends the job for everybody. NULL is ignored. */
BDN_API void bdn_free(bdn_worker* worker);

/* Waits until the servers have all that this worker has started, then says that its work is done
 * and waits until all workers have said so: up to the timeout each. BDN_DEADLINE_EXCEEDED of the
 * first names what is in flight, and nothing has changed; of the second, who is missing, and the
 * job is over. From then on what needs this worker fails. */
BDN_API int bdn_leave(bdn_worker* worker, double timeout_seconds);

/* Ends the job for everybody with an error that names this worker and `reason`. */
BDN_API int bdn_abort_job(bdn_worker* worker, const char* reason);

/* Gives the worker to the process's end: exit(0) leaves as bdn_leave does, without a timeout, and frees
 * it; exit with any other status ends the job with that status and `cause`, what the caller knows of
 * it, which may be NULL. A process that a signal or _exit ends does neither, and so ends the job. No
 * call may be made on the worker afterwards; memory that is in flight stays until the end. */
BDN_API int bdn_leave_at_exit(bdn_worker* worker, const char* cause);

BDN_API int bdn_rank(const bdn_worker* worker);
BDN_API int bdn_size(const bdn_worker* worker); /* number of workers */

/* ---- A whole cluster in this process: for tests, sweeps and one-machine experiments ---- */

/* A scheduler and servers on threads of this process, joined by a loopback transport. Settings as
 * of bdn_create: "workers=4", "servers=2", "seed=7" and those of the scheduler. */
BDN_API int bdn_local_cluster_create(const bdn_options* options, bdn_cluster** out);
/* As bdn_create, within `cluster`: waits until all its workers were created, so call it from one
 * thread each. A cluster that is freed before its workers, or while they are being created, ends
 * with the last of them. */
BDN_API int bdn_create_local(bdn_cluster* cluster, const bdn_options* options, bdn_worker** out);
BDN_API void bdn_local_cluster_free(bdn_cluster* cluster);

/* ---- Tensors ---- */

enum {
  BDN_FUSE = 1
}; /* bdn_declaration.flags: may share a frame with its neighbours of this call */

typedef struct bdn_declaration {
  size_t struct_size; /* sizeof(bdn_declaration) */
  const char* name;   /* unique in the job */
  uint64_t elements;
  int32_t dtype; /* BDN_FLOAT32, BDN_FLOAT16, BDN_BFLOAT16 or BDN_FLOAT64 */
  uint32_t flags;
  const char* push; /* codec spec, NULL for "none" */
  const char* pull;
  uint64_t warmup_steps; /* the first steps go uncompressed */
  float momentum;        /* before error feedback; 0 for none. Needs push = ef(...) */
  uint32_t group;        /* only tensors of one group are fused: one learning rate each */
  const char* rule;      /* what the servers do with the sum: bdn_rules_help(). NULL for "mean" */
} bdn_declaration;

/* Declares tensors in forward order and waits until all workers declared the same ones (in any
 * order) and the servers are ready. ids[i] names tensors[i] in later calls. The n-th call of each
 * worker belongs to the n-th of the others. A tensor declared before, with the same facts, is
 * answered at once. BDN_INVALID_ARGUMENT names a conflict and both workers, or shows where a spec
 * is wrong. */
BDN_API int bdn_declare(bdn_worker* worker, const bdn_declaration* tensors, size_t count,
                        uint32_t* ids, double timeout_seconds);

/* This worker is done with these tensors: their ids name nothing from now on, and a declaration of their
 * names, by all workers, is one of new tensors, at step 0 and without memories. When all workers have said
 * so, or are leaving, the servers give the tensors' memory back. Never waits: what is in flight goes on and
 * can be waited for, pushes that have not begun end with BDN_CANCELLED, and ids that name nothing are passed
 * over. BDN_INVALID_ARGUMENT, and nothing has changed: a tensor is fused with others that are not among
 * these. */
BDN_API int bdn_retire(bdn_worker* worker, const uint32_t* ids, size_t count);

enum {
  /* bdn_push.flags: no gradient this step; data is only written. With data NULL the result is not sent
   * to this worker: 96 bytes a partition or group go each way, and the bdn_result says BDN_RESULT_ABSENT
   * only where nobody had a gradient of anything that shares the frame. */
  BDN_ABSENT = 1
};

/* bdn_push.device. BDN_CUDA(n) is the GPU that CUDA calls n in this process (and PyTorch cuda:n). */
#define BDN_HOST 0
#define BDN_CUDA(n) (1 + (n))

typedef struct bdn_push {
  size_t struct_size; /* sizeof(bdn_push) */
  void* data;      /* elements of the declared type, contiguous; read, then overwritten. NULL with
                      BDN_ABSENT when the result is not wanted, and so not sent */
  uint32_t tensor; /* from bdn_declare */
  uint32_t flags;
  /* Higher goes first, of what waits here and at the servers: the push, and the reply to it, which is
   * as urgent as the most urgent push of the step. No result depends on it. */
  int32_t priority;
  int32_t device; /* where data lies: BDN_HOST, or BDN_CUDA(n) for the memory of a GPU */
  void* stream;   /* of a GPU, its CUstream or cudaStream_t: the exchange begins once it gets here.
                     NULL is the default one. NULL of the host */
  float weight;   /* of this worker's contribution, >= 0, usually 1 */
  float
      loss_scale; /* data holds gradients times this; the result comes back times this; usually 1 */
  float learning_rate; /* for update rules that need it, else 0 */
  /* 1 + how many steps this program had ended when it pushed; 0 is not known. A round of pushes in which
   * two workers say different ones fails for all with BDN_INVALID_ARGUMENT, which names both. */
  uint32_t program_steps;
  /* Optional, float32[elements]: gets what the codec leaves out of this push, data (times weight /
   * loss_scale) minus what its encoding decodes to. Only where push has neither ef(...) nor
   * momentum, and of the host. Valid as long as data. */
  float* left_out;
  /* Optional. Runs on a thread of ours once the result is in data, must neither block nor free the
   * worker, and gives the ticket up: bdn_wait is then not for it. */
  void (*done)(void* user_data, bdn_ticket ticket, int code);
  void* user_data;
} bdn_push;

/* Starts the exchange of one tensor, in place, and returns at once. `data` must stay valid and
 * untouched until the ticket is done. A second call for a tensor before the first is done queues
 * behind it. Tensors that were fused wait for each other's push of the same step. Of a GPU's tensor
 * nothing is waited for, and NVIDIA's driver is opened when the first comes: BDN_NOT_FOUND where there is
 * none, or no such GPU; BDN_FAILED_PRECONDITION while its stream is being captured into a graph. What is
 * wrong with its other numbers is told by bdn_wait. */
BDN_API int bdn_push_pull(bdn_worker* worker, const bdn_push* push, bdn_ticket* ticket);
/* As `count` calls of it, in order, at the cost of one: *started (may be NULL) gets how many are in
 * flight, with tickets[0] to tickets[*started - 1]. The error is that of the next one, at which it
 * stopped. */
BDN_API int bdn_push_pull_all(bdn_worker* worker, const bdn_push* pushes, size_t count,
                              bdn_ticket* tickets, size_t* started);

enum {
  BDN_RESULT_ABSENT = 1,   /* nobody had a gradient: data is unchanged */
  BDN_RESULT_NONFINITE = 2 /* somebody's gradient held NaN or infinity: data is filled with NaN */
};

typedef struct bdn_result {
  size_t struct_size; /* sizeof(bdn_result) */
  uint64_t step;
  uint32_t flags;
  uint32_t reserved;
} bdn_result;

/* Waits for a ticket and gives it up. BDN_DEADLINE_EXCEEDED: still in flight, ticket still valid;
 * the error names what it waits for. BDN_UNKNOWN: the server owed the answer for the setting wait-timeout (which
 * does not run while it waits for other workers), or the push was refused as not yet possible too often, and whether the servers have counted it is not
 * known; data is yours again. The worker finds it out: pushes of the tensor wait for that (and end the
 * job if they wait for as long in vain), and with push = ef(...) what was not counted goes with the
 * next. Any other error: the exchange failed, nothing of it was counted, and data is unspecified. */
BDN_API int bdn_wait(bdn_worker* worker, bdn_ticket ticket, double timeout_seconds,
                     bdn_result* result);
/* As a bdn_wait for each of `count` tickets, in order, with one timeout: *ended (may be NULL) gets
 * how many have ended well and were given up, results[0] to results[*ended - 1] (NULL: not wanted)
 * theirs. The error is that of the next one, at which it stopped; those behind it are as they were. */
BDN_API int bdn_wait_all(bdn_worker* worker, const bdn_ticket* tickets, size_t count,
                         double timeout_seconds, bdn_result* results, size_t* ended);

/* As bdn_wait, but of a GPU's tensor it returns once the result has come to this worker: what is put into
 * `stream` (as bdn_push.stream; of any GPU) from now on waits until it is in the GPU's memory, and the
 * CPU does not. Of a tensor of the host it is bdn_wait. */
BDN_API int bdn_wait_stream(bdn_worker* worker, bdn_ticket ticket, void* stream,
                            double timeout_seconds, bdn_result* result);
/* As bdn_wait_all; streams[i] is that of tickets[i]. */
BDN_API int bdn_wait_stream_all(bdn_worker* worker, const bdn_ticket* tickets, void* const* streams,
                                size_t count, double timeout_seconds, bdn_result* results,
                                size_t* ended);

/* Memory that gradients are best made of, 64-byte aligned: a process that takes part through its host's
 * daemon (setting attach) shares it with the daemon, and what is pushed out of it is not copied. Of any
 * other worker it is ordinary memory. BDN_RESOURCE_EXHAUSTED: there is no more. bdn_free_memory gives it
 * back, on any thread, also after bdn_free; NULL is ignored. */
BDN_API int bdn_alloc(bdn_worker* worker, uint64_t bytes, void** out);
BDN_API void bdn_free_memory(void* memory);

/* Overwrites `data` (bytes long, any element type) with root's, on every worker. What a worker has already, by
 * its SHA-256, is not sent to it. Each name and size is
 * declared at its first use, and stays. All workers call it in the same order. */
BDN_API int bdn_broadcast(bdn_worker* worker, const char* name, void* data, uint64_t bytes,
                          int root, double timeout_seconds);

/* Waits for all workers. */
BDN_API int bdn_barrier(bdn_worker* worker, const char* name, double timeout_seconds);

/* Says a value of this program, its loss of a step, for the scheduler's status page: it goes with the next
 * heartbeat, and this never waits. `name` is 1 to 64 bytes of printable ASCII without quotes, backslashes and
 * spaces; a job has at most 64 names. A value that is not finite is shown as a gap. What several workers say of
 * one step is shown as their mean. */
BDN_API int bdn_report(bdn_worker* worker, const char* name, uint64_t step, double value);

/* ---- Weights that servers hold ---- */

/* With a rule other than "mean" the servers hold the weights: a push brings a gradient (or, for
 * outer rules, the difference that local steps made) and its result are the new weights. One rank
 * sets them before anybody pushes; then every worker fetches them, into the replica that delta and
 * sign replies build on, too. */

/* The update rules with their options and defaults, a line each. */
BDN_API const char* bdn_rules_help(void);
/* Whether a rule is right; *canonical (may be NULL) gets its canonical form, as bdn_stats_json. */
BDN_API int bdn_check_rule(const char* rule, char* canonical, size_t capacity);

/* The weights as every worker holds them: float32[elements]. BDN_DEADLINE_EXCEEDED: nobody has set
 * them yet. */
BDN_API int bdn_fetch_weights(bdn_worker* worker, uint32_t tensor, float* out, uint64_t elements,
                              double timeout_seconds);

/* The same where `weights` holds what they may be, as of a model that every worker has made from one seed:
 * parts of it that are equal by their SHA-256 are not sent, and stay as they are. A process of a host with a
 * daemon is sent them all. */
BDN_API int bdn_sync_weights(bdn_worker* worker, uint32_t tensor, float* weights, uint64_t elements,
                             double timeout_seconds);

/* What the servers hold of a tensor: "weights"; "replica" (pull = delta(...)); "residual" (pull =
 * ef(...)); "moment0", "moment1" (of the rule). BDN_NOT_FOUND: this tensor has no such part.
 * Between steps only. Setting is for one rank, always the same; it also sets the step that the
 * servers stand at, and weights set the replica: they come first. */
BDN_API int bdn_get_server_state(bdn_worker* worker, uint32_t tensor, const char* what, float* out,
                                 uint64_t elements, double timeout_seconds);
BDN_API int bdn_set_server_state(bdn_worker* worker, uint32_t tensor, const char* what,
                                 const float* in, uint64_t elements, uint64_t step,
                                 double timeout_seconds);
/* How often the servers have updated the tensor, and the learning rate that left their residual. */
BDN_API int bdn_get_server_counters(bdn_worker* worker, uint32_t tensor, uint64_t* updates,
                                    float* previous_learning_rate, double timeout_seconds);
BDN_API int bdn_set_server_counters(bdn_worker* worker, uint32_t tensor, uint64_t updates,
                                    float previous_learning_rate, uint64_t step,
                                    double timeout_seconds);
/* The update rule of these tensors from the next step on, in the place of the declared one and of its kind:
 * "adamw(beta1=0.85)" after "adamw(beta1=0.95)". For the rank that sets state, between steps, while no worker
 * pushes them. BDN_INVALID_ARGUMENT shows what is wrong with it, BDN_NOT_FOUND: the servers step these tensors
 * by no rule that may change (mean, sign_momentum). Where one is refused, others may have taken it. */
BDN_API int bdn_set_server_rule(bdn_worker* worker, const uint32_t* tensors, size_t count,
                                const char* rule, double timeout_seconds);

/* ---- State and statistics ---- */

/* What the link still owes ("residual"), the momentum before it ("momentum"), the weights that
 * replies build on ("replica"): float32[elements], zeros where there is none yet. Or the learning
 * rate that left the residual ("learning_rate"): one float32, elements = 1. REQUIRES no exchange of
 * the tensor in flight, else BDN_FAILED_PRECONDITION. */
BDN_API int bdn_get_state(bdn_worker* worker, uint32_t tensor, const char* what, float* out,
                          uint64_t elements);
BDN_API int bdn_set_state(bdn_worker* worker, uint32_t tensor, const char* what, const float* in,
                          uint64_t elements);
/* Exchanges of the tensor so far. Setting it is for going on where a checkpoint stopped: on every
 * worker, and the servers' too. */
BDN_API int bdn_get_step(bdn_worker* worker, uint32_t tensor, uint64_t* step);
BDN_API int bdn_set_step(bdn_worker* worker, uint32_t tensor, uint64_t step);

/* Counters as a JSON object. Its member "stages", unless setting stage-times is off, has for each
 * stage that a key passes through {"items", "bytes", "wall_ns", "cpu_ns"}, as docs/thread_model.md
 * explains them. Its member "quality", unless setting quality-every is 0, has what the pushes' error
 * feedback leaves out, as docs/metrics.md explains it. Returns the bytes it needs with the final NUL; writes at most
 * `capacity`. 0: there are none, and bdn_last_error() says why. */
BDN_API size_t bdn_stats_json(bdn_worker* worker, char* out, size_t capacity);

/* `message` as a line of the program's own log that fits the library's: the object of JSON that it writes
 * with setting log-format=json, with job, node, rank, epoch and step where they are known, without the line's
 * end. `level` is "debug", "info", "warning" or "error", any other counts as "info"; `unix_seconds` is when
 * it happened. Returns as bdn_stats_json does, and 0 while log-format is text. */
BDN_API size_t bdn_json_log_line(const char* level, const char* message, double unix_seconds,
                                 char* out, size_t capacity);

/* The scheduler's view of the job as a JSON object, asked without joining. Of the settings it takes
 * scheduler, token, token-file, tls-ca, tls-cert, tls-key and insecure. */
BDN_API int bdn_status_json(const bdn_options* options, double timeout_seconds, char* out,
                            size_t capacity, size_t* needed);

/* The GPUs that bdn_push can be of, a line each, and whether they encode; or a line that says why there is
 * none. Opens the driver (of the settings, cuda-driver). */
BDN_API int bdn_describe_devices(const bdn_options* options, char* out, size_t capacity,
                                 size_t* needed);

/* Whether a codec spec is right; *canonical (may be NULL) gets its canonical form, as
 * bdn_stats_json. */
BDN_API int bdn_check_codec(const char* spec, char* canonical, size_t capacity);

/* The codecs with their options and defaults, a line each. */
BDN_API const char* bdn_codecs_help(void);

/* Traits of a codec spec. */
enum {
  /* What arrives is what was sent, bit for bit (float32). */
  BDN_CODEC_LOSSLESS = 1,
  /* A reply by the same codec loses nothing of a sum of pushes. */
  BDN_CODEC_CARRIES_SUMS = 2,
  /* Servers add payloads without decoding them. */
  BDN_CODEC_ADDS_ENCODED = 4,
  /* All workers draw alike which elements they send. */
  BDN_CODEC_SHARES_DRAW = 8,
  /* ef(...): the sender keeps what was left out, and sends it later. */
  BDN_CODEC_ERROR_FEEDBACK = 16,
  /* ef(..., correction=lr): pushes need a learning rate. */
  BDN_CODEC_LEARNING_RATE_CORRECTION = 32,
  /* delta(...): for pulling weights that servers hold. */
  BDN_CODEC_DELTA = 64,
  /* The codec changes with the step. */
  BDN_CODEC_SCHEDULE = 128
};
/* *traits gets the BDN_CODEC_... of a spec, or-ed. Of a schedule: the first four where they hold of
 * all its stages, and its memory. BDN_INVALID_ARGUMENT as bdn_check_codec. */
BDN_API int bdn_codec_traits(const char* spec, uint32_t* traits);

#ifdef __cplusplus
}
#endif

#endif /* BANDONEON_H_ */
