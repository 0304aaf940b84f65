/* Counts the instructions of a program that runs under qemu-user, by where they are.
 *
 *     qemu-aarch64 -plugin count.so,out=FILE,begin=SYMBOL,phase=SYMBOL,phase=SYMBOL PROGRAM
 *
 * Counting begins when the function whose name contains `begin` is entered, and anew each time; at
 * once without one. From the entry of a function whose name contains a `phase` on, what runs counts
 * as that phase, until the next is entered. FILE then has lines of three kinds:
 *
 *     anchor ADDRESS SYMBOL               where that function is in memory
 *     block PHASE ADDRESS INSTRUCTIONS    what ran in the run of instructions from there
 *     call PHASE NUMBER TIMES             system calls
 *
 * Debian has qemu's plugins and no header for them. What is used of it is declared here, after
 * https://www.qemu.org/docs/master/devel/tcg-plugins.html, interface version 1.
 */

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t plugin_id;

PUBLIC int qemu_plugin_version = 1;

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id,
                                                  void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *,
                                                 void (*)(unsigned, void *), int flags, void *);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id,
                                                 void (*)(plugin_id, unsigned, int64_t, uint64_t,
                                                          uint64_t, uint64_t, uint64_t, uint64_t,
                                                          uint64_t, uint64_t, uint64_t));
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *);

enum { NO_REGISTERS = 0, PHASES_MAX = 8, CALLS = 512, SLOTS = 1 << 20, MARKS_MAX = 8 };

/* A run of instructions without a jump into it. */
struct block {
    uint64_t address;
    uint64_t instructions;
    uint64_t times[PHASES_MAX];
};

/* A function that changes what is counted as what. */
struct mark {
    const char *part_of_name;
    char *name;
    uint64_t address;
    bool begins;
    unsigned phase;
};

static struct block *table[SLOTS];
static uint64_t calls[PHASES_MAX][CALLS];
static struct mark marks[MARKS_MAX];
static unsigned marks_count, phases = 1, phase;
static const char *file;

static struct block *block_of(uint64_t address, uint64_t instructions)
{
    uint64_t hash = (address * 31 + instructions) * 0x9e3779b97f4a7c15u;
    for (uint64_t at = hash >> 44;; at = (at + 1) % SLOTS) {
        struct block *block = table[at];
        if (block && (block->address != address || block->instructions != instructions))
            continue;
        if (!block) {
            block = table[at] = calloc(1, sizeof *block);
            if (!block)
                abort();
            block->address = address;
            block->instructions = instructions;
        }
        return block;
    }
}

static void on_block(unsigned cpu, void *block)
{
    (void)cpu;
    ((struct block *)block)->times[phase]++;
}

static void on_mark(unsigned cpu, void *data)
{
    (void)cpu;
    struct mark *mark = data;
    if (mark->begins) {
        memset(calls, 0, sizeof calls);
        for (size_t at = 0; at < SLOTS; at++)
            if (table[at])
                memset(table[at]->times, 0, sizeof table[at]->times);
    }
    phase = mark->phase;
}

static void on_call(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c,
                    uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
    (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number >= 0 && number < CALLS)
        calls[phase][number]++;
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *tb)
{
    (void)id;
    uint64_t address = qemu_plugin_tb_vaddr(tb);
    const char *symbol = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(tb, 0));
    for (unsigned at = 0; symbol && at < marks_count; at++) {
        struct mark *mark = &marks[at];
        if (!strstr(symbol, mark->part_of_name))
            continue;
        /* What is translated first of a function is what runs first: its entry. */
        if (!mark->address) {
            mark->address = address;
            mark->name = strdup(symbol);
        }
        if (mark->address == address)
            qemu_plugin_register_vcpu_tb_exec_cb(tb, on_mark, NO_REGISTERS, mark);
    }
    struct block *block = block_of(address, qemu_plugin_tb_n_insns(tb));
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, NO_REGISTERS, block);
}

static void on_exit_of_program(plugin_id id, void *data)
{
    (void)id, (void)data;
    FILE *out = fopen(file, "w");
    if (!out) {
        perror(file);
        return;
    }
    for (unsigned at = 0; at < marks_count; at++)
        if (marks[at].address)
            fprintf(out, "anchor %" PRIx64 " %s\n", marks[at].address, marks[at].name);
    for (size_t at = 0; at < SLOTS; at++)
        for (unsigned of = 0; table[at] && of < phases; of++)
            if (table[at]->times[of])
                fprintf(out, "block %u %" PRIx64 " %" PRIu64 "\n", of, table[at]->address,
                        table[at]->instructions * table[at]->times[of]);
    for (unsigned of = 0; of < phases; of++)
        for (unsigned number = 0; number < CALLS; number++)
            if (calls[of][number])
                fprintf(out, "call %u %u %" PRIu64 "\n", of, number, calls[of][number]);
    fclose(out);
}

PUBLIC int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    for (int at = 0; at < argc; at++) {
        char *value = strchr(argv[at], '=');
        if (!value)
            return -1;
        *value++ = 0;
        if (!strcmp(argv[at], "out")) {
            file = strdup(value);
            continue;
        }
        bool begins = !strcmp(argv[at], "begin");
        if ((!begins && strcmp(argv[at], "phase")) || marks_count == MARKS_MAX)
            return -1;
        struct mark *mark = &marks[marks_count++];
        mark->part_of_name = strdup(value);
        mark->begins = begins;
        if (!begins && (mark->phase = phases++) >= PHASES_MAX)
            return -1;
    }
    if (!file)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_syscall_cb(id, on_call);
    qemu_plugin_register_atexit_cb(id, on_exit_of_program, NULL);
    return 0;
}
