/* A SIMULATED libnvidia-ml.so.1 for tests: no GPU, no driver, no NVIDIA code.
 *
 * It plays what a state file says (path in SIMULATED_NVML_STATE, mapped shared, so that a test changes values
 * while the library is in use) and counts every call there. struct state is mirrored in __init__.py.
 * Symbols can be left out at compile time: -DWITHOUT_nvmlDeviceGetFieldValues and the like.
 * Signatures and layouts follow the published NVML API that nvidia-ml-py calls.
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 16
#define MAX_PIDS 16
#define MAX_FUNCTIONS 32

/* The order gives each function its place in the arrays of struct state; __init__.py reads this list. */
#define FUNCTIONS(X) \
    X(nvmlInitWithFlags) \
    X(nvmlShutdown) \
    X(nvmlSystemGetDriverVersion) \
    X(nvmlDeviceGetCount_v2) \
    X(nvmlDeviceGetHandleByIndex_v2) \
    X(nvmlDeviceGetUUID) \
    X(nvmlDeviceGetName) \
    X(nvmlDeviceGetArchitecture) \
    X(nvmlDeviceGetMigMode) \
    X(nvmlDeviceGetUtilizationRates) \
    X(nvmlDeviceGetPowerUsage) \
    X(nvmlDeviceGetEnforcedPowerLimit) \
    X(nvmlDeviceGetFieldValues) \
    X(nvmlDeviceGetComputeRunningProcesses_v2) \
    X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlGpmQueryDeviceSupport) \
    X(nvmlGpmSampleAlloc) \
    X(nvmlGpmSampleFree) \
    X(nvmlGpmSampleGet) \
    X(nvmlGpmMetricsGet)

enum {
#define X(name) F_##name,
    FUNCTIONS(X)
#undef X
};

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, UNINITIALIZED = 1 };

struct gpu { /* 512 bytes */
    int32_t ret;         /* what every call on this GPU returns */
    int32_t handle_ret;  /* handle lookup */
    int32_t util_ret;
    int32_t instant_ret; /* field 186 */
    int32_t average_ret; /* field 185 */
    int32_t energy_ret;  /* field 83 */
    int32_t usage_ret;   /* nvmlDeviceGetPowerUsage */
    int32_t gpm_support;
    int32_t metric_ret;  /* status of SM_UTIL alone */
    int32_t metric_nan;  /* ANY_TENSOR is not a number */
    int32_t mig;
    int32_t smoothing;
    int32_t smoothing_ret; /* field 251 */
    int32_t arch;
    int32_t limit_ret;   /* field 190 */
    int32_t pid_count;
    uint32_t pids[MAX_PIDS];
    double util, mem_util, power_w, average_w, limit_w, sm, tensor, dram, pcie_mib, nvlink_mib;
    char uuid[96];
    char name[96];
    char pad[512 - 64 - 64 - 80 - 192];
};

struct state {
    int32_t count;
    int32_t process_entry_bytes; /* 24, or 32 as the R535 drivers' third version had it */
    int32_t order[MAX_GPUS];
    int32_t function_ret[MAX_FUNCTIONS];
    int32_t hang[MAX_FUNCTIONS];    /* waits as long as it is set */
    int32_t crash[MAX_FUNCTIONS];   /* raises SIGSEGV */
    int32_t slow_us[MAX_FUNCTIONS]; /* takes so long */
    uint64_t calls[MAX_FUNCTIONS];
    char driver[64];
    char pad[2048 - 8 - 64 - 4 * 128 - 256 - 64];
    struct gpu gpus[MAX_GPUS];
};

struct value_field {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t type;
    int32_t ret;
    union { double d; uint32_t ui; uint64_t ull; } value;
};
struct utilization { uint32_t gpu, memory; };
struct process { uint32_t pid; uint64_t bytes; uint32_t gi, ci; };
struct gpm_support { uint32_t version, supported; };
struct gpm_sample { struct gpu *gpu; double t, sm, tensor, dram, pcie_mib, nvlink_mib; };
struct gpm_metric { uint32_t id; int32_t ret; double value; char *info[3]; };
struct gpm_metrics { uint32_t version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };

static struct state *state;
static int references;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int enter(int function) {
    if (!state) {
        const char *path = getenv("SIMULATED_NVML_STATE");
        int fd = path ? open(path, O_RDWR) : -1;
        if (fd < 0) return 999;
        void *area = mmap(0, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (area == MAP_FAILED) return 999;
        state = area;
    }
    __atomic_fetch_add(&state->calls[function], 1, __ATOMIC_RELAXED);
    volatile struct state *s = state;
    while (s->hang[function]) usleep(2000);
    if (s->crash[function]) raise(SIGSEGV);
    if (s->slow_us[function]) usleep(s->slow_us[function]);
    if (function != F_nvmlInitWithFlags && !references) return UNINITIALIZED;
    return s->function_ret[function];
}

#define ENTER(name) do { int r = enter(F_##name); if (r) return r; } while (0)
#define ENTER_GPU(name, gpu) do { ENTER(name); if ((gpu)->ret) return (gpu)->ret; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(nvmlInitWithFlags);
    references++;
    return OK;
}

int nvmlShutdown(void) {
    ENTER(nvmlShutdown);
    references--;
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "simulated error %d", code);
    return text;
}

static int copy(char *to, const char *from, unsigned size) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER(nvmlSystemGetDriverVersion);
    return copy(text, state->driver, size);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(nvmlDeviceGetCount_v2);
    *count = state->count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu) {
    ENTER(nvmlDeviceGetHandleByIndex_v2);
    if (index >= (unsigned)state->count) return INVALID_ARGUMENT;
    *gpu = &state->gpus[state->order[index]];
    return (*gpu)->handle_ret;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned size) {
    ENTER_GPU(nvmlDeviceGetUUID, gpu);
    return copy(text, gpu->uuid, size);
}

int nvmlDeviceGetName(struct gpu *gpu, char *text, unsigned size) {
    ENTER_GPU(nvmlDeviceGetName, gpu);
    return copy(text, gpu->name, size);
}

int nvmlDeviceGetArchitecture(struct gpu *gpu, unsigned *arch) {
    ENTER_GPU(nvmlDeviceGetArchitecture, gpu);
    *arch = gpu->arch;
    return OK;
}

int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER_GPU(nvmlDeviceGetMigMode, gpu);
    *current = *pending = gpu->mig;
    return OK;
}

int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *rates) {
    ENTER_GPU(nvmlDeviceGetUtilizationRates, gpu);
    if (gpu->mig) return NOT_SUPPORTED;
    rates->gpu = gpu->util;
    rates->memory = gpu->mem_util;
    return gpu->util_ret;
}

int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned *milliwatts) {
    ENTER_GPU(nvmlDeviceGetPowerUsage, gpu);
    *milliwatts = gpu->average_w * 1000;
    return gpu->usage_ret;
}

int nvmlDeviceGetEnforcedPowerLimit(struct gpu *gpu, unsigned *milliwatts) {
    ENTER_GPU(nvmlDeviceGetEnforcedPowerLimit, gpu);
    *milliwatts = gpu->limit_w * 1000;
    return OK;
}

#ifndef WITHOUT_nvmlDeviceGetFieldValues
static void fill(struct gpu *gpu, struct value_field *field) {
    field->type = 1; /* unsigned int */
    switch (field->field) {
    case 186: field->ret = gpu->instant_ret; field->value.ui = gpu->power_w * 1000; break;
    case 185: field->ret = gpu->average_ret; field->value.ui = gpu->average_w * 1000; break;
    case 190: field->ret = gpu->limit_ret; field->value.ui = gpu->limit_w * 1000; break;
    case 251: field->ret = gpu->smoothing_ret; field->value.ui = gpu->smoothing; break;
    case 83: /* millijoules, as if the power had always been what it is now */
        field->ret = gpu->energy_ret;
        field->type = 3; /* unsigned long long */
        field->value.ull = gpu->power_w * 1000 * now();
        break;
    default: field->ret = NOT_SUPPORTED;
    }
}

int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct value_field *fields) {
    ENTER_GPU(nvmlDeviceGetFieldValues, gpu);
    for (int i = 0; i < count; i++) fill(gpu, &fields[i]);
    return OK;
}
#endif

static int list_processes(struct gpu *gpu, unsigned *count, char *entries, size_t entry_bytes) {
    unsigned room = *count;
    *count = gpu->pid_count;
    if (!gpu->pid_count) return OK;
    if (!entries || room < (unsigned)gpu->pid_count) return INSUFFICIENT_SIZE;
    for (int i = 0; i < gpu->pid_count; i++) {
        struct process entry = {.pid = gpu->pids[i], .bytes = 1 << 30, .gi = 0xffffffff, .ci = 0xffffffff};
        memset(entries + i * entry_bytes, 0, entry_bytes);
        memcpy(entries + i * entry_bytes, &entry, sizeof entry);
    }
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(struct gpu *gpu, unsigned *count, char *entries) {
    ENTER_GPU(nvmlDeviceGetComputeRunningProcesses_v2, gpu);
    return list_processes(gpu, count, entries, 24);
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, char *entries) {
    ENTER_GPU(nvmlDeviceGetComputeRunningProcesses_v3, gpu);
    return list_processes(gpu, count, entries, state->process_entry_bytes);
}

#ifndef WITHOUT_nvmlGpmQueryDeviceSupport
int nvmlGpmQueryDeviceSupport(struct gpu *gpu, struct gpm_support *support) {
    ENTER_GPU(nvmlGpmQueryDeviceSupport, gpu);
    support->supported = gpu->gpm_support;
    return OK;
}
#endif

int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    ENTER(nvmlGpmSampleAlloc);
    *sample = calloc(1, sizeof **sample);
    return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER(nvmlGpmSampleFree);
    free(sample);
    return OK;
}

int nvmlGpmSampleGet(struct gpu *gpu, struct gpm_sample *sample) {
    ENTER_GPU(nvmlGpmSampleGet, gpu);
    *sample = (struct gpm_sample){gpu, now(), gpu->sm, gpu->tensor, gpu->dram, gpu->pcie_mib, gpu->nvlink_mib};
    return OK;
}

int nvmlGpmMetricsGet(struct gpm_metrics *get) {
    ENTER(nvmlGpmMetricsGet);
    struct gpm_sample *sample = get->second;
    /* Samples too near to each other, or in the wrong order, say nothing: the hardware refreshes every 100 ms. */
    if (get->version != 1 || sample->t - get->first->t < 0.1 || sample->gpu != get->first->gpu)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->count; i++) {
        struct gpm_metric *metric = &get->metrics[i];
        metric->ret = OK;
        switch (metric->id) {
        case 2: metric->value = sample->sm; metric->ret = sample->gpu->metric_ret; break;
        case 5: metric->value = sample->gpu->metric_nan ? NAN : sample->tensor; break;
        case 10: metric->value = sample->dram; break;
        case 20: metric->value = sample->pcie_mib; break;
        case 21: metric->value = 0; break;
        case 60: metric->value = sample->nvlink_mib; break;
        case 61: metric->value = 0; break;
        default: metric->ret = NOT_SUPPORTED;
        }
    }
    return OK;
}

/* The mirror in __init__.py relies on these. */
_Static_assert(sizeof(struct gpu) == 512, "struct gpu");
_Static_assert(sizeof(struct state) == 2048 + 512 * MAX_GPUS, "struct state");
_Static_assert(sizeof(struct value_field) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(struct gpm_metric) == 40, "nvmlGpmMetric_t");
