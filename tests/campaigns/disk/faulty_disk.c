/* A disk that fails, for the programs that load this library with LD_PRELOAD.
 *
 * It behaves as Linux does when it cannot write back: `fsync` and `fdatasync` fail with EIO for a file that was written
 * since its last sync, and succeed when they are repeated, although the data never reached the disk.
 *
 *   FAULTY_DISK_FOLDER   the folder of the files to watch; those that end in -shm or -lock are left alone
 *   FAULTY_DISK_CONTROL  a file of 4 bytes. The first is the mode: 0 healthy, 1 dead, 2 failing at random, 3 killing,
 *                        4 killing in syncs of the database only, 5 holding writes to the database until the mode
 *                        changes, for ten seconds at most, 6 failing in syncs of the database only, and evicting their
 *                        pages. In modes 2 to 4, the second is the probability, in 1/256, with which a sync fails or
 *                        kills. A process whose write is held creates the file of that name with the ending `.held`.
 *   FAULTY_DISK_PLATTER  optional: a folder with what the disk holds of the database and its log, and with `dirty`: for
 *                        each of their pages, whether it was written since the last sync. A sync copies the dirty pages
 *                        to the platter. In modes 3 and 4, syncs kill their process with the probability of the second
 *                        byte: before the sync, after it, or after a failure. A failure leaves the pages clean, and a
 *                        half of the failures evicts them: then the next read finds what the platter holds. The third
 *                        byte chooses one of these fates, or 0 for a random one. Each process survives as many syncs
 *                        as the fourth byte says.
 *   FAULTY_DISK_LOG      optional: a file to which each write, truncation, sync and removal is appended
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { WRITE = 1, TRUNCATE, SYNCED, SYNC_FAILED, REMOVE };

struct record {
    uint32_t kind, path_bytes;
    uint64_t offset, data_bytes;
};

struct file {
    dev_t device;
    ino_t inode;
    int is_dirty;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct file files[256];
static int file_count;
static const char *folder;
static const volatile uint8_t *control;
static int log_descriptor = -1, dirty_descriptor = -1;
static uint8_t *dirty;
static unsigned int seed;
static int burst; /* failures come in bursts: after one, half of the next eight syncs fail as well */

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_unlink)(const char *);

__attribute__((constructor)) static void prepare(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    folder = getenv("FAULTY_DISK_FOLDER");
    const char *path = getenv("FAULTY_DISK_CONTROL");
    if (!folder || !path) return;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    control = mmap(NULL, 4, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if ((path = getenv("FAULTY_DISK_PLATTER"))) {
        char name[PATH_MAX];
        snprintf(name, sizeof name, "%s/dirty", path);
        dirty_descriptor = open(name, O_RDWR | O_CLOEXEC);
        dirty = mmap(NULL, 2 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, dirty_descriptor, 0);
    }
    if ((path = getenv("FAULTY_DISK_LOG")))
        log_descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = (unsigned int)(now.tv_nsec ^ getpid());
}

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

static int is_watched(const char *path) {
    size_t length = folder ? strlen(folder) : 0;
    return length && control && !strncmp(path, folder, length) && !ends_with(path, "-shm") && !ends_with(path, "-lock");
}

/* The path of a descriptor, if its file is watched. A removed file has lost its path. */
static const char *path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return is_watched(path) && !ends_with(path, " (deleted)") ? path : NULL;
}

static struct file *state_of(int descriptor) {
    struct stat found;
    if (fstat(descriptor, &found) || !S_ISREG(found.st_mode)) return NULL;
    for (int i = 0; i < file_count; i++)
        if (files[i].device == found.st_dev && files[i].inode == found.st_ino) return &files[i];
    if (file_count == 256) file_count = 0;
    files[file_count] = (struct file){found.st_dev, found.st_ino, 0};
    return &files[file_count++];
}

static void note(enum kind kind, const char *path, uint64_t offset, const void *data, size_t count) {
    if (log_descriptor < 0) return;
    struct record head = {kind, (uint32_t)strlen(path), offset, count};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, head.path_bytes}, {(void *)data, count}};
    if (writev(log_descriptor, parts, data ? 3 : 2) < 0) abort();
}

/* --- the platter --- */

enum { PAGE = 4096, PAGES = 1 << 16, DATABASE = 0, WAL = 1, OTHER = 2 };

static int which(const char *path) {
    if (dirty_descriptor < 0) return OTHER;
    return ends_with(path, ".sqlite3") ? DATABASE : ends_with(path, ".sqlite3-wal") ? WAL : OTHER;
}

/* Processes share the platter. The lock ends with its process. */
static void hold_platter(short kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET};
    while (dirty_descriptor >= 0 && fcntl(dirty_descriptor, F_SETLKW, &lock) && errno == EINTR) {}
}

static int open_platter(int file) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", getenv("FAULTY_DISK_PLATTER"), file == WAL ? "wal" : "database");
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void mark(int file, off_t offset, size_t count, uint8_t value) {
    for (size_t page = (size_t)offset / PAGE; count && page <= ((size_t)offset + count - 1) / PAGE && page < PAGES; page++)
        dirty[file * PAGES + page] = value;
}

/* Copy the dirty pages to the platter, or take the others back from it. */
static void copy_pages(int file, int descriptor, int evict) {
    int platter = open_platter(file);
    char kept[PAGE], lost[PAGE];
    off_t size = lseek(descriptor, 0, SEEK_END);
    for (off_t page = 0; page * PAGE < size && page < PAGES; page++) {
        uint8_t *is_dirty = &dirty[file * PAGES + page];
        if (*is_dirty == evict) continue;
        memset(kept, 0, PAGE);
        if (evict) {
            ssize_t count = pread(descriptor, lost, PAGE, page * PAGE);
            if (pread(platter, kept, PAGE, page * PAGE) < 0 || count <= 0) abort();
            if (memcmp(kept, lost, (size_t)count)) real_pwrite(descriptor, kept, (size_t)count, page * PAGE);
        } else {
            ssize_t count = pread(descriptor, kept, PAGE, page * PAGE);
            if (count > 0 && real_pwrite(platter, kept, (size_t)count, page * PAGE) != count) abort();
            *is_dirty = 0;
        }
    }
    close(platter);
}

static unsigned int draw(void) {
    static pid_t seeded;
    if (seeded != getpid()) seed ^= (unsigned int)(seeded = getpid()) * 2654435761u;
    return (unsigned int)rand_r(&seed) >> 8;
}

static int loses(int file) { return control[0] == 6 && file == DATABASE; }

static void sync_platter(int file, int descriptor) {
    static int syncs;
    static pid_t process;
    if (process != getpid()) process = getpid(), syncs = 0;
    int may_die = control[0] == 3 || (control[0] == 4 && file == DATABASE);
    int dies = may_die && ++syncs > control[3] && (draw() & 255) < control[1];
    /* 1: nothing is synced, 2: the sync fails, 3: the same, and the pages are evicted, others: the sync succeeds */
    unsigned int fate = loses(file) ? 3 : !dies ? 4 : control[2] ? control[2] : 1 + draw() % 5;
    if (fate == 2 || fate == 3) {
        memset(&dirty[file * PAGES], 0, PAGES);
        if (fate == 3) copy_pages(file, descriptor, 1);
    } else if (fate != 1)
        copy_pages(file, descriptor, 0);
    if (dies) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
}

static void written(int descriptor, const char *path, uint64_t offset, const void *data, ssize_t count) {
    if (count <= 0) return;
    struct file *file = state_of(descriptor);
    if (file) file->is_dirty = 1;
    note(WRITE, path, offset, data, (size_t)count);
}

static void hold_write(void) {
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s.held", getenv("FAULTY_DISK_CONTROL"));
    close(open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (int i = 0; i < 10000 && control[0] == 5; i++) usleep(1000);
}

ssize_t pwrite64(int descriptor, const void *data, size_t count, off_t offset) {
    char buffer[PATH_MAX];
    const char *path = path_of(descriptor, buffer);
    if (!path) return real_pwrite(descriptor, data, count, offset);
    if (control[0] == 5 && which(path) == DATABASE) hold_write();
    pthread_mutex_lock(&mutex);
    hold_platter(F_WRLCK);
    if (which(path) != OTHER) mark(which(path), offset, count, 1); /* first: the process may be killed after the write */
    ssize_t done = real_pwrite(descriptor, data, count, offset);
    int error = errno;
    written(descriptor, path, (uint64_t)offset, data, done);
    hold_platter(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    errno = error;
    return done;
}

ssize_t pwrite(int descriptor, const void *data, size_t count, off_t offset) {
    return pwrite64(descriptor, data, count, offset);
}

ssize_t write(int descriptor, const void *data, size_t count) {
    char buffer[PATH_MAX];
    const char *path = path_of(descriptor, buffer);
    if (!path) return real_write(descriptor, data, count);
    pthread_mutex_lock(&mutex);
    hold_platter(F_WRLCK);
    ssize_t done = real_write(descriptor, data, count);
    int error = errno;
    off_t end = lseek(descriptor, 0, SEEK_CUR);
    written(descriptor, path, (uint64_t)(end - (done > 0 ? done : 0)), data, done);
    hold_platter(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    errno = error;
    return done;
}

int ftruncate64(int descriptor, off_t size) {
    char buffer[PATH_MAX];
    const char *path = path_of(descriptor, buffer);
    if (!path) return real_ftruncate(descriptor, size);
    pthread_mutex_lock(&mutex);
    hold_platter(F_WRLCK);
    int result = real_ftruncate(descriptor, size);
    if (!result) {
        struct file *file = state_of(descriptor);
        if (file) file->is_dirty = 1;
        note(TRUNCATE, path, (uint64_t)size, NULL, 0);
        if (which(path) != OTHER) {
            int platter = open_platter(which(path));
            struct stat found;
            if (!fstat(platter, &found) && found.st_size > size && real_ftruncate(platter, size)) abort();
            close(platter);
            mark(which(path), size - size % PAGE, (size_t)PAGE * PAGES, 0);
            if (size % PAGE) mark(which(path), size, 1, 1);
        }
    }
    hold_platter(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    return result;
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

static int sync_file(int descriptor, int (*real)(int)) {
    char buffer[PATH_MAX];
    const char *path = path_of(descriptor, buffer);
    if (!path) return real(descriptor);
    pthread_mutex_lock(&mutex);
    hold_platter(F_WRLCK);
    struct file *file = state_of(descriptor);
    unsigned int odds = burst > 0 ? 128 : control[1];
    int fails = file && file->is_dirty &&
                (control[0] == 1 || loses(which(path)) ||
                 (control[0] == 2 && (unsigned)(rand_r(&seed) >> 8 & 255) < odds));
    burst = fails ? 8 : burst - (burst > 0);
    if (file) file->is_dirty = 0;
    note(fails ? SYNC_FAILED : SYNCED, path, 0, NULL, 0);
    if (which(path) != OTHER) sync_platter(which(path), descriptor);
    hold_platter(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    if (!fails) return 0; /* the tests rebuild the disk from the log: a real sync would only take time */
    errno = EIO;
    return -1;
}

int fsync(int descriptor) { return sync_file(descriptor, real_fsync); }

int fdatasync(int descriptor) { return sync_file(descriptor, real_fdatasync); }

int unlink(const char *path) {
    if (!is_watched(path)) return real_unlink(path);
    pthread_mutex_lock(&mutex);
    hold_platter(F_WRLCK);
    int result = real_unlink(path);
    if (!result) note(REMOVE, path, 0, NULL, 0);
    if (!result && which(path) != OTHER) {
        int platter = open_platter(which(path));
        if (real_ftruncate(platter, 0)) abort();
        close(platter);
        mark(which(path), 0, (size_t)PAGE * PAGES, 0);
    }
    hold_platter(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    return result;
}
