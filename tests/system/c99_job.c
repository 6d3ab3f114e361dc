/* A job in C99 over the public header alone: two workers on threads of their own, in a cluster
 * inside this process. Exits with 0 when every result is right. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/c_api/bandoneon.h"

#define ELEMENTS 1000
#define WORKERS 2

static bdn_cluster* cluster;

static void must(int code, const char* what) {
  if (code == BDN_OK) return;
  fprintf(stderr, "%s: code %d: %s\n", what, code, bdn_last_error());
  exit(1);
}

static void expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "expected: %s\n", what);
  exit(1);
}

struct signal {
  pthread_mutex_t mutex;
  pthread_cond_t raised;
  int calls;
  int code;
};

static void on_done(void* user_data, bdn_ticket ticket, int code) {
  struct signal* done = user_data;
  (void)ticket;
  pthread_mutex_lock(&done->mutex);
  ++done->calls;
  done->code = code;
  pthread_cond_signal(&done->raised);
  pthread_mutex_unlock(&done->mutex);
}

static void push_and_wait(bdn_worker* worker, uint32_t id, float* data, bdn_result* result) {
  bdn_push push;
  bdn_ticket ticket = 0;
  memset(&push, 0, sizeof push);
  push.struct_size = sizeof push;
  push.data = data;
  push.tensor = id;
  push.weight = 1.0f;
  push.loss_scale = 1.0f;
  must(bdn_push_pull(worker, &push, &ticket), "bdn_push_pull");
  memset(result, 0, sizeof *result);
  result->struct_size = sizeof *result;
  must(bdn_wait(worker, ticket, 60.0, result), "bdn_wait");
}

/* Weights that the servers hold: rank 0 sets them, both fetch them, and a push steps on them. */
static void weights_on_servers(bdn_worker* worker) {
  bdn_declaration tensor;
  bdn_push push;
  bdn_ticket ticket = 0;
  uint32_t id = 0;
  uint64_t updates = 0;
  float rate = 0.0f;
  float x[8];
  float gradient[8];
  char rule[64];
  int i;

  must(bdn_check_rule("sgd( momentum = 0.0 )", rule, sizeof rule), "bdn_check_rule");
  expect(strcmp(rule, "sgd") == 0, "the canonical form");
  expect(strstr(bdn_rules_help(), "adamw(") != NULL, "the rules are described");
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.name = "held by the servers";
  tensor.elements = 8;
  tensor.dtype = BDN_FLOAT32;
  tensor.pull = "delta(int8)";
  tensor.rule = rule;
  must(bdn_declare(worker, &tensor, 1, &id, 60.0), "bdn_declare with a rule");
  for (i = 0; i < 8; ++i) x[i] = (float)i;
  if (bdn_rank(worker) == 0) {
    must(bdn_set_server_state(worker, id, "weights", x, 8, 0, 60.0), "bdn_set_server_state");
  }
  must(bdn_barrier(worker, "weights are set", 60.0), "bdn_barrier");
  memset(x, 0, sizeof x);
  must(bdn_fetch_weights(worker, id, x, 8, 60.0), "bdn_fetch_weights");
  x[5] = -1.0f;
  must(bdn_sync_weights(worker, id, x, 8, 60.0), "bdn_sync_weights");
  for (i = 0; i < 8; ++i) expect(x[i] == (float)i, "what differs is fetched");
  for (i = 0; i < 8; ++i) gradient[i] = 1.0f;
  memset(&push, 0, sizeof push);
  push.struct_size = sizeof push;
  push.data = gradient;
  push.tensor = id;
  push.weight = 1.0f;
  push.loss_scale = 1.0f;
  push.learning_rate = 0.5f;
  must(bdn_push_pull(worker, &push, &ticket), "bdn_push_pull of a gradient");
  must(bdn_wait(worker, ticket, 60.0, NULL), "bdn_wait");
  for (i = 0; i < 8; ++i) expect(gradient[i] == x[i] - 0.5f, "new weights in its place");
  must(bdn_get_server_state(worker, id, "replica", x, 8, 60.0), "bdn_get_server_state");
  expect(memcmp(x, gradient, sizeof x) == 0, "the servers' replica is what every worker has");
  must(bdn_get_server_counters(worker, id, &updates, &rate, 60.0), "bdn_get_server_counters");
  expect(updates == 1, "one update");
  expect(bdn_get_server_state(worker, id, "moment0", x, 8, 60.0) == BDN_NOT_FOUND, "no moment");
}

/* A table: both workers push row 7, rank 0 twice, and get rows 7 and 8 as the step left them. */
static void rows_on_servers(bdn_worker* worker) {
  const uint64_t touched[] = {7, 7}, wanted[] = {8, 7};
  const float gradients[] = {1.0f, 2.0f, 3.0f, 2.0f};
  float told[4] = {-1.0f, -1.0f, -1.0f, -1.0f}, fetched[4];
  bdn_table table;
  bdn_rows rows;
  bdn_rows_step step;
  bdn_ticket ticket = 0;
  uint32_t id;

  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.name = "table";
  table.rows = 10;
  table.width = 2;
  table.init = "constant";
  table.init_value = 0.5;
  must(bdn_declare_tables(worker, &table, 1, &id, 60.0), "bdn_declare_tables");
  memset(&rows, 0, sizeof rows);
  rows.struct_size = sizeof rows;
  rows.table = id;
  rows.ids = touched;
  rows.num_ids = bdn_rank(worker) == 0 ? 2 : 1;
  rows.gradients = gradients;
  rows.wanted = wanted;
  rows.num_wanted = 2;
  rows.out = told;
  memset(&step, 0, sizeof step);
  step.struct_size = sizeof step;
  step.weight = 1.0f;
  step.loss_scale = 1.0f;
  step.learning_rate = 1.0f;
  must(bdn_push_rows(worker, &step, &rows, 1, &ticket), "bdn_push_rows");
  must(bdn_wait(worker, ticket, 60.0, NULL), "bdn_wait of rows");
  /* (1 + 3 + 1) / 2 and (2 + 2 + 2) / 2. */
  expect(told[0] == 0.5f && told[1] == 0.5f, "the row that nobody pushed");
  expect(told[2] == 0.5f - 2.5f && told[3] == 0.5f - 3.0f, "the row that both pushed");
  rows.num_ids = 0;
  rows.ids = NULL;
  rows.gradients = NULL;
  rows.out = fetched;
  must(bdn_fetch_rows(worker, &rows, 1, &ticket), "bdn_fetch_rows");
  must(bdn_wait(worker, ticket, 60.0, NULL), "bdn_wait of a fetch");
  expect(memcmp(fetched, told, sizeof told) == 0, "a fetch gives the same rows");
  if (bdn_rank(worker) == 0) {
    bdn_table_layout layout;
    bdn_row_scan scan;
    bdn_row_records set;
    uint64_t ids[4];
    float records[4][4]; /* two elements, no moments, two counters */
    uint32_t found = 0;

    layout.struct_size = sizeof layout;
    must(bdn_get_table_layout(worker, id, &layout), "bdn_get_table_layout");
    expect(layout.width == 2 && layout.moments == 0, "the layout of a record");
    expect(layout.is_limited == 0, "a table without limits");
    memset(&scan, 0, sizeof scan);
    scan.struct_size = sizeof scan;
    scan.table = id;
    scan.room = 4;
    scan.ids = ids;
    scan.records = records;
    for (; scan.bucket < layout.buckets; ++scan.bucket) {
      must(bdn_scan_rows(worker, &scan, &ticket), "bdn_scan_rows");
      must(bdn_wait(worker, ticket, 60.0, NULL), "bdn_wait of a scan");
      expect(scan.cursor == 0 && scan.updates == 1, "a short table comes in one piece");
      if (scan.count == 0) continue;
      ++found;
      expect(ids[0] == 7 && memcmp(records[0], told + 2, 8) == 0, "the record of the row");
      memset(&set, 0, sizeof set);
      set.struct_size = sizeof set;
      set.table = id;
      set.updates = scan.updates;
      set.ids = ids;
      set.num_ids = 1;
      set.records = records;
      must(bdn_set_row_records(worker, &set, &ticket), "bdn_set_row_records");
      must(bdn_wait(worker, ticket, 60.0, NULL), "bdn_wait of records");
    }
    expect(found == 1, "one row is stored");
    set.replaces = 2;
    expect(bdn_set_row_records(worker, &set, &ticket) == BDN_INVALID_ARGUMENT,
           "replaces is 0 or 1");
    set.replaces = 0;
    set.list = 3;
    expect(bdn_set_row_records(worker, &set, &ticket) == BDN_INVALID_ARGUMENT, "no such list");
  }
  rows.table = 12345;
  expect(bdn_fetch_rows(worker, &rows, 1, &ticket) == BDN_NOT_FOUND, "no such table");
}

static void errors(bdn_worker* worker, uint32_t id) {
  bdn_push push;
  bdn_ticket ticket = 0;
  uint32_t traits = 0;
  float value = 0.0f;
  memset(&push, 0, sizeof push);
  push.tensor = id;
  push.data = &value;
  expect(bdn_push_pull(worker, &push, &ticket) == BDN_INVALID_ARGUMENT, "struct_size is checked");
  expect(strstr(bdn_last_error(), "struct_size") != NULL, "the error names struct_size");
  push.struct_size = sizeof push;
  push.weight = 1.0f;
  push.loss_scale = 1.0f;
  push.tensor = 12345;
  expect(bdn_push_pull(worker, &push, &ticket) == BDN_NOT_FOUND, "an unknown tensor is refused");
  {
    void* memory = NULL;
    expect(bdn_alloc(worker, UINT64_MAX, &memory) == BDN_RESOURCE_EXHAUSTED, "too much is refused");
    expect(bdn_alloc(worker, UINT64_MAX - 100, &memory) == BDN_RESOURCE_EXHAUSTED,
           "too much is refused");
    expect(memory == NULL, "and nothing is lent");
    expect(bdn_stats_json(NULL, NULL, 0) == 0, "nobody has no statistics");
    expect(bdn_dump_traces(NULL, NULL, 0, 1, NULL, NULL) == BDN_INVALID_ARGUMENT,
           "a dump needs a taker");
    expect(strstr(bdn_last_error(), "null") != NULL, "and the error says so");
  }
  expect(bdn_wait(worker, 98765, 0.0, NULL) == BDN_NOT_FOUND, "an unknown ticket is refused");
  expect(bdn_rank(NULL) == -1 && bdn_first_rank(NULL) == -1, "a null worker has no rank");
  expect(bdn_size(NULL) == 0 && bdn_joined_size(NULL) == 0, "a null worker has no job");
  expect(bdn_is_candidate(NULL) == 0 && bdn_candidates(NULL) == 0, "a null worker joins nothing");
  expect(bdn_barrier(NULL, "b", 1.0) == BDN_INVALID_ARGUMENT, "a null worker is refused");
  expect(bdn_report(NULL, "loss", 0, 1.0) == BDN_INVALID_ARGUMENT, "a null worker is refused");
  expect(bdn_check_codec("onebit(blok=4)", NULL, 0) == BDN_INVALID_ARGUMENT, "a typo is refused");
  expect(strstr(bdn_last_error(), "block") != NULL, "and what was meant is named");
  expect(strstr(bdn_codecs_help(), "onebit(block=0,scale=fp32)") != NULL,
         "the codecs are described");
  must(bdn_codec_traits("none for 9; blocks(ratio=0.5)", &traits), "bdn_codec_traits");
  expect(traits == (BDN_CODEC_CARRIES_SUMS | BDN_CODEC_ADDS_ENCODED | BDN_CODEC_SCHEDULE),
         "the traits of all stages");
  must(bdn_codec_traits("ef(none,correction=lr)", &traits), "bdn_codec_traits with a memory");
  expect(traits == (BDN_CODEC_LOSSLESS | BDN_CODEC_ADDS_ENCODED | BDN_CODEC_ERROR_FEEDBACK |
                    BDN_CODEC_LEARNING_RATE_CORRECTION),
         "the codec's traits and the memory's");
  expect(bdn_codec_traits("onebot", &traits) == BDN_INVALID_ARGUMENT, "no codec has no traits");
}

/* Each worker is a group of its own, in which the mean is what it pushes. */
static void groups(bdn_worker* worker, int rank) {
  const int32_t alone[1] = {rank};
  const int32_t twice[2] = {rank, rank};
  int32_t first = -1;
  char name[64];
  bdn_declaration tensor;
  bdn_result result;
  uint32_t id = 0;
  float data[ELEMENTS];
  uint64_t told = (uint64_t)rank + 7;
  int i;

  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  snprintf(name, sizeof name, "of rank %d", rank);
  tensor.name = name;
  tensor.elements = ELEMENTS;
  tensor.dtype = BDN_FLOAT32;
  tensor.ranks = twice;
  tensor.num_ranks = 2;
  expect(bdn_declare(worker, &tensor, 1, &id, 60.0) == BDN_INVALID_ARGUMENT, "a rank twice");
  tensor.ranks = alone;
  tensor.num_ranks = 1;
  must(bdn_declare(worker, &tensor, 1, &id, 60.0), "bdn_declare of a group");
  for (i = 0; i < ELEMENTS; ++i) data[i] = (float)(i + rank);
  push_and_wait(worker, id, data, &result);
  for (i = 0; i < ELEMENTS; ++i) expect(data[i] == (float)(i + rank), "the mean of one");

  expect(bdn_size_among(worker, alone, 1, &first) == 1 && first == rank, "it is there");
  expect(bdn_size_among(worker, twice, 2, &first) == 0 && first == -1, "no list of ranks");
  expect(bdn_name_among("told", twice, 2, name, sizeof name) == 0, "no name of no list");
  expect(bdn_name_among("told", alone, 1, name, sizeof name) == strlen(name) + 1, "its size");
  must(bdn_broadcast(worker, name, &told, sizeof told, rank, 60.0), "bdn_broadcast in a group");
  expect(told == (uint64_t)rank + 7, "its own");
  must(bdn_barrier(worker, name, 60.0), "bdn_barrier of a group");
}

static void* run(void* argument) {
  const int rank = *(int*)argument;
  char setting[32];
  const char* settings[1];
  bdn_options options = {sizeof options, settings, 1};
  bdn_worker* worker = NULL;
  bdn_declaration tensor;
  bdn_result result;
  uint32_t id = 0;
  uint32_t again = 0;
  uint64_t step = 0;
  float data[ELEMENTS];
  float state[ELEMENTS];
  char stats[4096];
  int64_t shared[4] = {rank, rank, rank, rank};
  struct signal done = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, -1};
  bdn_push push;
  bdn_ticket ticket = 0;
  int i;

  snprintf(setting, sizeof setting, "rank=%d", rank);
  settings[0] = setting;
  must(bdn_create_local(cluster, &options, &worker), "bdn_create_local");
  expect(bdn_rank(worker) == rank && bdn_size(worker) == WORKERS, "rank and size");
  expect(bdn_is_candidate(worker) == 0 && bdn_candidates(worker) == 0, "nobody joins later");
  size_t newcomers = 1;
  expect(bdn_boundary(worker, 60, NULL, 0, &newcomers) == BDN_OK && newcomers == 0,
         "a boundary without newcomers");
  expect(bdn_boundary(worker, 60, NULL, 1, &newcomers) == BDN_INVALID_ARGUMENT, "no room");
  expect(bdn_joined_size(worker) == WORKERS && bdn_first_rank(worker) == 0, "all are here");

  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.name = "weights";
  tensor.elements = ELEMENTS;
  tensor.dtype = BDN_FLOAT32;
  tensor.push = "ef(onebit(block=64))";
  tensor.warmup_steps = 1;
  must(bdn_declare(worker, &tensor, 1, &id, 60.0), "bdn_declare");

  for (i = 0; i < ELEMENTS; ++i) data[i] = (float)(i + rank);
  push_and_wait(worker, id, data, &result);
  for (i = 0; i < ELEMENTS; ++i) expect(data[i] == (float)i + 0.5f, "the mean of two workers");
  expect(result.step == 1 && result.flags == 0, "step 1, no flags");

  for (i = 0; i < ELEMENTS; ++i) data[i] = (float)(i % 7) - 3.0f;
  push_and_wait(worker, id, data, &result);
  must(bdn_get_state(worker, id, "residual", state, ELEMENTS), "bdn_get_state");
  for (i = 0; i < ELEMENTS; ++i) {
    const float sent = data[i] + state[i] - ((float)(i % 7) - 3.0f);
    expect(sent < 1e-4f && sent > -1e-4f, "sent + residual == input");
  }
  must(bdn_set_state(worker, id, "residual", state, ELEMENTS), "bdn_set_state");
  must(bdn_get_step(worker, id, &step), "bdn_get_step");
  expect(step == 2, "two steps so far");

  must(bdn_broadcast(worker, "counters", shared, sizeof shared, 1, 60.0), "bdn_broadcast");
  expect(shared[3] == 1, "root 1's value everywhere");
  {
    unsigned char whole[3] = {1, 2, 3};
    bdn_bytes parts[2];
    parts[0].data = whole;
    parts[0].bytes = 1;
    parts[1].data = whole + 1;
    parts[1].bytes = 2;
    if (rank == 0) memset(whole, 0, sizeof whole);
    must(bdn_broadcast_parts(worker, "parts", parts, 2, 1, BDN_HOLDS_NOTHING, 60.0),
         "bdn_broadcast_parts");
    expect(whole[0] == 1 && whole[1] == 2 && whole[2] == 3, "root 1's parts everywhere");
    if (rank == 0) parts[0].data = parts[1].data = NULL;
    must(bdn_broadcast_parts(worker, "parts", parts, 2, 1, BDN_HOLDS_VALUE, 60.0),
         "bdn_broadcast_parts without data");
    expect(bdn_broadcast_parts(worker, "parts", parts, 2, 1, 3, 60.0) == BDN_INVALID_ARGUMENT,
           "holds is one of three");
    expect(bdn_crc32c("123456789", 9) == 0xE3069283u, "the CRC of RFC 3720");
  }

  memset(&push, 0, sizeof push);
  push.struct_size = sizeof push;
  push.data = data;
  push.tensor = id;
  push.weight = 1.0f;
  push.loss_scale = 1.0f;
  {
    bdn_push pushes[2];
    bdn_ticket tickets[2] = {0, 0};
    bdn_result results[2];
    size_t count = 9;
    pushes[0] = pushes[1] = push;
    pushes[1].tensor = 12345;
    expect(bdn_push_pull_all(worker, pushes, 2, tickets, &count) == BDN_NOT_FOUND, "the second");
    expect(count == 1, "what comes before one that is refused is in flight");
    tickets[1] = 98765;
    memset(results, 0, sizeof results);
    results[0].struct_size = results[1].struct_size = sizeof results[0];
    expect(bdn_wait_all(worker, tickets, 2, 60.0, results, &count) == BDN_NOT_FOUND, "the second");
    expect(count == 1 && results[0].step == 3, "what has ended before it");
    expect(bdn_wait_all(worker, NULL, 0, 0.0, NULL, NULL) == BDN_OK, "none is none");
    expect(
        bdn_wait_stream_all(worker, tickets, NULL, 1, 0.0, results, &count) == BDN_INVALID_ARGUMENT,
        "streams are missing");
    expect(count == 0, "nothing has ended without streams");
    expect(bdn_push_pull_all(worker, NULL, 1, tickets, NULL) == BDN_INVALID_ARGUMENT, "no push");
  }
  push.done = on_done;
  push.user_data = &done;
  must(bdn_push_pull(worker, &push, &ticket), "bdn_push_pull with a callback");
  pthread_mutex_lock(&done.mutex);
  while (done.calls == 0) pthread_cond_wait(&done.raised, &done.mutex);
  pthread_mutex_unlock(&done.mutex);
  must(bdn_report(worker, "loss", 7, 0.5), "bdn_report");
  expect(bdn_report(worker, "two words", 7, 0.5) == BDN_INVALID_ARGUMENT,
         "a name with a space is refused");
  expect(bdn_report(worker, NULL, 7, 0.5) == BDN_INVALID_ARGUMENT, "no name is refused");
  expect(bdn_json_log_line("info", "text", 0.0, NULL, 0) == 0,
         "the log is text unless told otherwise");
  must(bdn_barrier(worker, "end", 60.0), "bdn_barrier");

  weights_on_servers(worker);
  groups(worker, rank);
  rows_on_servers(worker);
  errors(worker, id);
  expect(bdn_stats_json(worker, stats, sizeof stats) <= sizeof stats, "statistics fit");
  expect(strstr(stats, "\"bytes_pushed\"") != NULL, "statistics count bytes");
  expect(strstr(stats, "\"stages\":{\"queue\":{\"items\":") != NULL, "statistics count stages");
  expect(bdn_leave_at_exit(NULL, NULL) == BDN_INVALID_ARGUMENT,
         "no worker to leave at exit is refused");
  {
    int32_t server = -1;
    size_t parts = 0;
    must(bdn_servers_of(worker, id, &server, 1, &parts), "bdn_servers_of");
    expect(parts >= 1 && server >= 0, "the server of a tensor is told");
    expect(bdn_servers_of(worker, id, NULL, 0, &parts) == BDN_OK && parts >= 1, "and their number");
    expect(bdn_servers_of(worker, id, NULL, 1, &parts) == BDN_INVALID_ARGUMENT, "nowhere to write");
    expect(bdn_servers_of(worker, id, NULL, 0, NULL) == BDN_INVALID_ARGUMENT, "nowhere to count");
    expect(bdn_servers_of(worker, 98765, &server, 1, &parts) == BDN_NOT_FOUND, "no such tensor");
  }
  must(bdn_retire(worker, &id, 1), "bdn_retire");
  expect(bdn_get_step(worker, id, &step) == BDN_NOT_FOUND, "a retired tensor is gone");
  must(bdn_declare(worker, &tensor, 1, &again, 60.0), "bdn_declare of the name again");
  must(bdn_get_step(worker, again, &step), "bdn_get_step");
  expect(again != id && step == 0, "a new tensor, at step 0");
  must(bdn_leave(worker, 60.0), "bdn_leave");
  bdn_free(worker);
  expect(done.calls == 1 && done.code == BDN_OK, "the callback ran once, with BDN_OK");
  return NULL;
}

int main(void) {
  const char* settings[] = {"workers=2", "servers=2", "min-compress-bytes=0"};
  const char* wrong[] = {"wokers=2"};
  bdn_options options = {sizeof options, settings, 3};
  bdn_options misspelt = {sizeof misspelt, wrong, 1};
  bdn_cluster* none = NULL;
  pthread_t threads[WORKERS];
  int ranks[WORKERS];
  int i;

  expect(bdn_abi_version() == BDN_ABI_VERSION, "header and library agree");
  expect(bdn_local_cluster_create(&misspelt, &none) == BDN_INVALID_ARGUMENT, "a misspelt setting");
  expect(strstr(bdn_last_error(), "--workers") != NULL, "and what was meant");
  must(bdn_local_cluster_create(&options, &cluster), "bdn_local_cluster_create");
  for (i = 0; i < WORKERS; ++i) {
    ranks[i] = i;
    if (pthread_create(&threads[i], NULL, run, &ranks[i]) != 0) return 1;
  }
  for (i = 0; i < WORKERS; ++i) pthread_join(threads[i], NULL);
  bdn_local_cluster_free(cluster);
  puts("ok");
  return 0;
}
