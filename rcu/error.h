/* SPDX-License-Identifier: MIT */
/*
 * What went wrong, in words. The first detector words the cause with oci_error; those above pass the status on,
 * adding the step with oci_error_add where it helps. Statuses are the numbers of oc_status; the layers below
 * liboc/ know them as int.
 */
#ifndef OCI_RCU_ERROR_H
#define OCI_RCU_ERROR_H

#include <stdint.h>

/* Sets this thread's last error; returns status. Without host memory a fixed sentence stands in. */
int oci_error(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends to this thread's last error ("; " first); returns status. */
int oci_error_add(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#ifdef OC_READ_BY_TOOLS
/* Tools that read one file at a time (tests/static.sh) do not see what comes back. */
#define oci_error(status, ...) (oci_error(status, __VA_ARGS__), (status))
#define oci_error_add(status, ...) (oci_error_add(status, __VA_ARGS__), (status))
#endif
/* This thread's last error; "" if none. Valid until the thread's next failure. */
const char *oci_error_text(void);
/* How many this thread has had: around a callback, whether the last error is its. */
uint32_t oci_error_count(void);

enum oci_log_level { OCI_LOG_ERROR = 0, OCI_LOG_WARNING = 1, OCI_LOG_NOTE = 2 };
typedef void (*oci_log_fn)(void *arg, int level, const char *line);
void oci_set_log(oci_log_fn fn, void *arg);
void oci_log(enum oci_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * log_held: log lines of one thread that come out once it has left a lock that the callback's calls could need; in the
 *           frame of who holds the lock. Lines past the first few are only counted.
 */
#define LOG_HELD_LINES 4u
#define LOG_HELD_BYTES 800u
struct log_held {
  unsigned count;
  int level[LOG_HELD_LINES];
  char line[LOG_HELD_LINES][LOG_HELD_BYTES];
};
/* From now on this thread's lines stay in h; where they stay somewhere already, they go on to. Without host memory for the thread's words
   they come out at once. */
void oci_log_hold(struct log_held *h);
/* Out with those in h. The thread's last error is afterwards what it was. */
void oci_log_let_go(struct log_held *h);

/* Around fork(): a lock of ours that another thread holds would stay locked in the child. */
enum oci_fork_step { OCI_FORK_PREPARE, OCI_FORK_PARENT, OCI_FORK_CHILD };
void oci_log_fork(enum oci_fork_step step);

#endif
