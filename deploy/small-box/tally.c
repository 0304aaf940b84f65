/* Counts the instructions of a process that runs, in its own code and in the kernel.
 *
 *     tally PID FILE
 *
 * until it gets SIGTERM, and writes `user N kernel N` into FILE then. Threads that begin meanwhile
 * count if those that are there begin them.
 */
#include <dirent.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS_MAX = 64 };

static int open_counter(pid_t thread, int of_kernel)
{
    struct perf_event_attr counter;
    memset(&counter, 0, sizeof counter);
    counter.size = sizeof counter;
    counter.type = PERF_TYPE_HARDWARE;
    counter.config = PERF_COUNT_HW_INSTRUCTIONS;
    counter.exclude_user = of_kernel;
    counter.exclude_kernel = !of_kernel;
    counter.exclude_hv = 1;
    counter.inherit = 1;
    return syscall(SYS_perf_event_open, &counter, thread, -1, -1, 0);
}

int main(int argc, char **argv)
{
    char path[64];
    int counters[2][THREADS_MAX], threads = 0;
    uint64_t sums[2] = {0, 0};

    if (argc != 3)
        return 2;
    snprintf(path, sizeof path, "/proc/%s/task", argv[1]);
    DIR *tasks = opendir(path);
    if (!tasks)
        return perror(path), 1;
    for (struct dirent *task; (task = readdir(tasks)) && threads < THREADS_MAX;) {
        pid_t thread = atoi(task->d_name);
        if (!thread)
            continue;
        for (int of_kernel = 0; of_kernel < 2; of_kernel++) {
            counters[of_kernel][threads] = open_counter(thread, of_kernel);
            if (counters[of_kernel][threads] < 0)
                return perror("perf_event_open"), 1;
        }
        threads++;
    }
    sigset_t end;
    int signal;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL);
    sigwait(&end, &signal);
    for (int of_kernel = 0; of_kernel < 2; of_kernel++)
        for (int at = 0; at < threads; at++) {
            uint64_t count = 0;
            if (read(counters[of_kernel][at], &count, sizeof count) == sizeof count)
                sums[of_kernel] += count;
        }
    FILE *out = fopen(argv[2], "w");
    if (!out)
        return perror(argv[2]), 1;
    fprintf(out, "user %llu kernel %llu\n", (unsigned long long)sums[0],
            (unsigned long long)sums[1]);
    return fclose(out) != 0;
}
