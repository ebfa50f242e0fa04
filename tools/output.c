/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool cannot_write(const char *path, struct fault *why)
{
  struct quoted q;

  return oct_fault(why, "%s: cannot be written: %s", oct_quote(&q, path), strerror(errno));
}

/* ---- What a path is ---- */

static bool is_same(const struct stat *a, const struct stat *b)
{
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Standard output or error went to this file, and goes on in it: another file of its name would not have what follows. */
static bool is_standard(const struct stat *st)
{
  struct stat out, err;

  return (fstat(STDOUT_FILENO, &out) == 0 && is_same(st, &out)) || (fstat(STDERR_FILENO, &err) == 0 && is_same(st, &err));
}

/* NULL: errno says why no file can stand there. */
static char *target_of(const char *path)
{
  char *target = realpath(path, NULL);
  size_t n = strlen(path);
  struct stat link;

  if (target || errno != ENOENT || n == 0 || lstat(path, &link) == 0)
    return target;
  if (path[n - 1] == '/') {
    errno = EISDIR;
    return NULL;
  }
  return strdup(path);
}

static int folder_length(const char *target)
{
  const char *slash = strrchr(target, '/');

  return slash ? (int)(slash + 1 - target) : 0;
}

/* ---- The file, while it is no one's yet ---- */

struct fd_name { char text[32]; };

static const char *name_fd(struct fd_name *n, int fd)
{
  snprintf(n->text, sizeof n->text, "/proc/self/fd/%d", fd);
  return n->text;
}

static int link_fd(int fd, const char *name)
{
  struct fd_name n;

  return linkat(AT_FDCWD, name_fd(&n, fd), AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

/* -1: not on this file system, or without /proc, which gives such a file its name. */
static int open_nameless(const char *target)
{
  char *folder = folder_length(target) ? strndup(target, (size_t)folder_length(target)) : strdup(".");
  int fd = folder ? open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
  struct fd_name n;

  free(folder);
  if (fd < 0 || access(name_fd(&n, fd), F_OK) == 0)
    return fd;
  close(fd);
  return -1;
}

/* A name beside the target: of the nameless file fd, or of a new one (fd: -1), whose descriptor is answered. */
static int name_beside(struct output *o, int fd)
{
  size_t room = strlen(o->target) + 64;
  char *name = malloc(room);
  int got = -1;

  for (unsigned n = 0; name && got < 0 && n < 100; n++) {
    snprintf(name, room, "%.*s.octool-%ld-%u", folder_length(o->target), o->target, (long)getpid(), n);
    got = fd < 0 ? open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : link_fd(fd, name);
    if (got < 0 && errno != EEXIST)
      break;
  }
  if (got < 0)
    free(name);
  else
    o->temporary = name;
  return got;
}

/* Who may read the one that it replaces may read it. */
static void take_after(int fd, const struct stat *old)
{
  (void)!fchown(fd, old->st_uid, old->st_gid);
  (void)!fchmod(fd, old->st_mode & 0777);
}

static void forget(struct output *o)
{
  if (o->temporary)
    unlink(o->temporary);
  free(o->temporary);
  free(o->target);
  o->temporary = o->target = NULL;
}

static FILE *open_beside(struct output *o, const struct stat *old)
{
  int fd = open_nameless(o->target);
  FILE *f;

  if (fd < 0)
    fd = name_beside(o, -1);
  if (fd < 0)
    return NULL;
  if (old)
    take_after(fd, old);
  f = fdopen(fd, "w");
  if (!f)
    close(fd);
  return f;
}

bool oct_output_open_file(struct output *o, const char *path, struct fault *why)
{
  struct stat st;
  bool there = stat(path, &st) == 0;

  *o = (struct output){.path = path};
  if (there && (!S_ISREG(st.st_mode) || is_standard(&st))) {
    o->file = fopen(path, "we");
  } else if (!there || access(path, W_OK) == 0) {
    o->target = target_of(path);
    o->file = o->target ? open_beside(o, there ? &st : NULL) : NULL;
  }
  if (o->file)
    return true;
  cannot_write(path, why);
  forget(o);
  return false;
}

bool oct_output_open(struct output *o, const char *path, struct fault *why)
{
  if (path && strcmp(path, "-") != 0)
    return oct_output_open_file(o, path, why);
  *o = (struct output){.path = path, .file = path ? stdout : NULL};
  return true;
}

bool oct_output_is_stdout(const struct output *o)
{
  return o->file == stdout;
}

bool oct_both_stdout(const char *a, const char *b)
{
  return a && b && strcmp(a, "-") == 0 && strcmp(b, "-") == 0;
}

bool oct_output_is_no_input(const char *path, char *const *files, size_t count, struct fault *why)
{
  struct stat out, in;
  struct quoted q;

  if (!path || stat(path, &out) != 0 || !S_ISREG(out.st_mode))
    return true;
  for (size_t i = 0; i < count; i++)
    if (stat(files[i], &in) == 0 && is_same(&in, &out))
      return oct_fault(why, "%s: cannot be written: it is one of the files that are read", oct_quote(&q, path));
  return true;
}

/* ---- The end ---- */

/* With no file of the target's name, and none of its own, it needs no other. */
static bool give_name(struct output *o)
{
  if (!o->target || o->temporary || link_fd(fileno(o->file), o->target) == 0)
    return true;
  return errno == EEXIST && name_beside(o, fileno(o->file)) == 0;
}

static bool close_file(struct output *o)
{
  FILE *f = o->file;

  o->file = NULL;
  return f == stdout || fclose(f) == 0;
}

/* Under its name at last. */
static bool place(struct output *o)
{
  if (fflush(o->file) != 0 || !give_name(o) || !close_file(o))
    return false;
  if (!o->temporary)
    return true;
  if (rename(o->temporary, o->target) != 0)
    return false;
  free(o->temporary);
  o->temporary = NULL;
  return true;
}

bool oct_output_write(struct output *o, json_t *document, struct fault *why)
{
  bool dumped;

  if (!o->file) {
    json_decref(document);
    return true;
  }
  if (!document) {
    oct_output_abandon(o);
    return oct_fault(why, "no memory for the JSON document");
  }
  dumped = json_dumpf(document, o->file, JSON_INDENT(2)) == 0 && fputc('\n', o->file) != EOF;
  json_decref(document);
  return oct_output_close(o, dumped, why);
}

bool oct_output_close(struct output *o, bool put, struct fault *why)
{
  bool ok = (put && place(o)) || cannot_write(o->path, why);

  oct_output_abandon(o);
  return ok;
}

void oct_output_abandon(struct output *o)
{
  if (o->file)
    close_file(o);
  forget(o);
}

bool oct_flush_stdout(struct fault *why)
{
  if (fflush(stdout) == 0 && !ferror(stdout))
    return true;
  return oct_fault(why, "standard output: cannot be written: %s", strerror(errno));
}
