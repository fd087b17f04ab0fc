/* A SIMULATED libdcmi.so for tests: no NPU, no driver, no code of the vendor.
 *
 * It plays what a state file says (path in SIMULATED_DCMI_STATE, mapped shared, so that a test changes values
 * while the library is in use). struct state is mirrored in __init__.py. -DONLY_SECOND leaves out the functions
 * that address a chip by card and device. Signatures, layouts and codes follow the published DCMI interface.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_NPUS 16
#define MAX_PIDS 32
#define MAX_RATES 16

enum { OK = 0, INVALID_PARAMETER = -8001, NOT_PERMITTED = -8002, NOT_EXIST = -8008, NOT_SUPPORTED = -8255 };
enum { VDIE = 1, DDIE = 2 };

struct npu { /* 512 bytes */
    int32_t ret; /* what every call on this chip returns */
    int32_t card, device, type;
    int32_t power_ret, die_ret, pids_ret, pid_count;
    int32_t power_tenths;
    int32_t rates[MAX_RATES];     /* percent, by type */
    int32_t rate_rets[MAX_RATES]; /* return codes, by type */
    int32_t pids[MAX_PIDS];
    uint32_t die[5];
    char name[32];
    char pad[512 - 4 * (9 + 16 + 16 + 32 + 5) - 32];
};

struct state {
    int32_t count, init_ret, first_ret; /* first_ret: what the first generation's functions return */
    int32_t hang, crash;                /* reading a utilisation waits as long as it is set, or ends the process */
    int32_t pad0;
    uint64_t inits, reads;
    char driver[64];
    char pad[512 - 24 - 16 - 64];
    struct npu npus[MAX_NPUS];
};

struct proc { int pid; unsigned long bytes; };
struct chip { unsigned char type[32], name[32], version[32]; unsigned int cores; };
struct die { unsigned int words[5]; };

static struct state *state;

static int enter(void) {
    if (!state) {
        const char *path = getenv("SIMULATED_DCMI_STATE");
        int fd = path ? open(path, O_RDWR) : -1;
        if (fd < 0) return NOT_EXIST;
        void *area = mmap(0, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (area == MAP_FAILED) return NOT_EXIST;
        state = area;
    }
    return OK;
}

static int chip_rate(struct npu *npu, int type, unsigned int *rate) {
    __atomic_fetch_add(&state->reads, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&state->hang, __ATOMIC_SEQ_CST)) usleep(1000);
    if (state->crash) raise(SIGSEGV);
    if (npu->ret) return npu->ret;
    if (type < 0 || type >= MAX_RATES) return INVALID_PARAMETER;
    *rate = npu->rates[type];
    return npu->rate_rets[type];
}

static int chip_power(struct npu *npu, int *power) {
    *power = npu->power_tenths;
    return npu->ret ? npu->ret : npu->power_ret;
}

static int chip_info(struct npu *npu, struct chip *info) {
    memset(info, 0, sizeof *info);
    strcpy((char *)info->type, "Ascend");
    strncpy((char *)info->name, npu->name, 31);
    info->cores = 24;
    return npu->ret;
}

static int chip_die(struct npu *npu, int kind, struct die *die) {
    if (npu->ret || npu->die_ret) return npu->ret ? npu->ret : npu->die_ret;
    if (kind != VDIE && kind != DDIE) return INVALID_PARAMETER;
    memcpy(die->words, npu->die, sizeof die->words);
    return OK;
}

static int chip_pids(struct npu *npu, struct proc *procs, int *count) {
    if (npu->ret || npu->pids_ret) return npu->ret ? npu->ret : npu->pids_ret;
    for (int i = 0; i < npu->pid_count; i++) procs[i] = (struct proc){npu->pids[i], 1ul << 30};
    *count = npu->pid_count;
    return OK;
}

static int driver_version(char *text, unsigned int length) {
    snprintf(text, length, "%s", state->driver);
    return OK;
}

#define INIT(FIRST) \
    do { \
        int code = enter(); \
        if (code == OK) code = FIRST ? state->first_ret : 0; \
        if (code != OK) return code; \
    } while (0)

#ifndef ONLY_SECOND
static struct npu *by_place(int card, int device) {
    for (int i = 0; i < state->count; i++)
        if (state->npus[i].card == card && state->npus[i].device == device) return &state->npus[i];
    return 0;
}

#define FIND(card, device) \
    INIT(1); \
    struct npu *npu = by_place(card, device); \
    if (!npu) return NOT_EXIST

int dcmi_init(void) {
    INIT(1);
    state->inits++;
    return state->init_ret;
}
int dcmi_get_driver_version(char *text, unsigned int length) { INIT(1); return driver_version(text, length); }
int dcmi_get_card_list(int *count, int *cards, int length) {
    INIT(1);
    *count = 0;
    for (int i = 0; i < state->count; i++) {
        int known = 0;
        for (int k = 0; k < *count; k++) known |= cards[k] == state->npus[i].card;
        if (!known && *count < length) cards[(*count)++] = state->npus[i].card;
    }
    return OK;
}
int dcmi_get_device_num_in_card(int card, int *count) {
    INIT(1);
    *count = 0;
    for (int i = 0; i < state->count; i++) *count += state->npus[i].card == card;
    return OK;
}
int dcmi_get_device_type(int card, int device, int *type) { FIND(card, device); *type = npu->type; return npu->ret; }
int dcmi_get_device_chip_info(int card, int device, struct chip *info) { FIND(card, device); return chip_info(npu, info); }
int dcmi_get_device_die_v2(int card, int device, int kind, struct die *die) { FIND(card, device); return chip_die(npu, kind, die); }
int dcmi_get_device_utilization_rate(int card, int device, int type, unsigned int *rate) {
    FIND(card, device);
    return chip_rate(npu, type, rate);
}
int dcmi_get_device_power_info(int card, int device, int *power) { FIND(card, device); return chip_power(npu, power); }
int dcmi_get_device_resource_info(int card, int device, struct proc *procs, int *count) {
    FIND(card, device);
    return chip_pids(npu, procs, count);
}
#endif

#define TAKE(device) \
    INIT(0); \
    if (device < 0 || device >= state->count) return NOT_EXIST; \
    struct npu *npu = &state->npus[device]

int dcmiv2_init(void) {
    INIT(0);
    state->inits++;
    return state->init_ret;
}
int dcmiv2_get_driver_version(char *text, unsigned int length) { INIT(0); return driver_version(text, length); }
int dcmiv2_get_device_list(int *devices, int *count, int length) {
    INIT(0);
    for (*count = 0; *count < state->count && *count < length; (*count)++) devices[*count] = *count;
    return OK;
}
int dcmiv2_get_device_type(int device, int *type) { TAKE(device); *type = npu->type; return npu->ret; }
int dcmiv2_get_device_chip_info(int device, struct chip *info) { TAKE(device); return chip_info(npu, info); }
int dcmiv2_get_device_die_id(int device, int kind, struct die *die) { TAKE(device); return chip_die(npu, kind, die); }
int dcmiv2_get_device_utilization_rate(int device, int type, unsigned int *rate) { TAKE(device); return chip_rate(npu, type, rate); }
int dcmiv2_get_device_power_info(int device, int *power) { TAKE(device); return chip_power(npu, power); }
int dcmiv2_get_device_proc_mem_info(int device, struct proc *procs, int *count) { TAKE(device); return chip_pids(npu, procs, count); }
