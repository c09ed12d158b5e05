/* Preloaded into a process: counts the calls that change files under a folder, and at the nth ends the process or fails.

   cc -shared -fPIC -O1 -o faults.so faults.c -ldl
   arm(folder, n, mode): mode 0 counts; 1 ends the process before call n; 2 ends it after half of what call n would
   write; 3 lets call n and all later ones fail with ENOSPC, but those that free space; 4 lets call n alone fail so;
   5 lets call n alone fail with EIO; 6 lets every rename from call n on fail with EXDEV, as between two disks.
   counted(): the number of calls so far. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];
static long calls, chosen;
static int mode;

void arm(const char *path, long n, int how) {
    strncpy(folder, path, sizeof folder - 1);
    calls = 0; chosen = n; mode = how;
}

long counted(void) { return calls; }

static int inside(const char *path) { return folder[0] && !strncmp(path, folder, strlen(folder)); }

static int open_inside(int fd) {
    char link[64], path[4096];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return inside(path);
}

enum kind { FREES, CHANGES, WRITES, RENAMES };      /* unlink; mkdir, fsync, ftruncate; write; rename */

/* 1: fail. 2: write a half, then end. 0: go on. */
static int fault(enum kind kind) {
    calls++;
    if (calls == chosen && mode == 1) _exit(86);
    if (calls == chosen && mode == 2) { if (kind == WRITES) return 2; _exit(86); }
    if (kind != FREES && ((calls >= chosen && mode == 3) || (calls == chosen && mode == 4))) { errno = ENOSPC; return 1; }
    if (kind != FREES && calls == chosen && mode == 5) { errno = EIO; return 1; }
    if (kind == RENAMES && calls >= chosen && mode == 6) { errno = EXDEV; return 1; }
    return 0;
}

#define NEXT(type, name) static type (*next)(); if (!next) next = dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t count) {
    NEXT(ssize_t, "write");
    int what = open_inside(fd) ? fault(WRITES) : 0;
    if (what == 1) return -1;
    if (what == 2) { next(fd, data, count / 2); _exit(86); }
    return next(fd, data, count);
}

static ssize_t positioned(ssize_t (*next)(int, const void *, size_t, off_t), int fd, const void *data, size_t count,
                          off_t at) {
    int what = open_inside(fd) ? fault(WRITES) : 0;
    if (what == 1) return -1;
    if (what == 2) { next(fd, data, count / 2, at); _exit(86); }
    return next(fd, data, count, at);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite");
    return positioned(next, fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off_t at) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite64");
    return positioned(next, fd, data, count, at);
}

#define ON_FD(name, ...)                                                                                               \
    static int (*next)(int, ##__VA_ARGS__); if (!next) next = dlsym(RTLD_NEXT, name);                                  \
    if (open_inside(fd) && fault(CHANGES)) return -1;

int fsync(int fd) { ON_FD("fsync") return next(fd); }
int fdatasync(int fd) { ON_FD("fdatasync") return next(fd); }
int ftruncate(int fd, off_t size) { ON_FD("ftruncate", off_t) return next(fd, size); }
int ftruncate64(int fd, off_t size) { ON_FD("ftruncate64", off_t) return next(fd, size); }

int rename(const char *path, const char *to) {
    static int (*next)(const char *, const char *);
    if (!next) next = dlsym(RTLD_NEXT, "rename");
    if (inside(path) && fault(RENAMES)) return -1;
    return next(path, to);
}

int link(const char *path, const char *to) {
    static int (*next)(const char *, const char *);
    if (!next) next = dlsym(RTLD_NEXT, "link");
    if (inside(path) && fault(RENAMES)) return -1;
    return next(path, to);
}

int unlink(const char *path) {
    static int (*next)(const char *);
    if (!next) next = dlsym(RTLD_NEXT, "unlink");
    if (inside(path)) fault(FREES);
    return next(path);
}

int mkdir(const char *path, mode_t permissions) {
    static int (*next)(const char *, mode_t);
    if (!next) next = dlsym(RTLD_NEXT, "mkdir");
    if (inside(path) && fault(CHANGES)) return -1;
    return next(path, permissions);
}
