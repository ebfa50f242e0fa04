/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMS_MAX = 8 };

void oct_liboc_fault_write(struct fault *f, oc_status st, const char *format, ...)
{
  char words[sizeof f->text];
  va_list ap;

  va_start(ap, format);
  vsnprintf(words, sizeof words, format, ap);
  va_end(ap);
  oct_fault_write(f, "%.400s: %s: %.500s", words, oc_status_name(st), oc_last_error());
}

/* A table entry's failure, in the driver's words. */
static bool entry_fault(const struct device *d, oc_status st, const char *entry, struct fault *why)
{
  const char *words = d->ops->last_error ? d->ops->last_error(d->self) : "";

  return oct_fault(why, "device: %s: %s: %s", entry, oc_status_name(st), words ? words : "");
}

bool oct_device_open(struct device *d, const char *backend, size_t device_bytes, struct fault *why)
{
  oc_host_options options = {.struct_size = sizeof options, .device_bytes = device_bytes};
  struct quoted q;
  oc_status st;

  *d = (struct device){0};
  if (strcmp(backend, "host") == 0)
    st = oc_backend_open_host(&options, &d->backend);
  else if (strcmp(backend, "cuda") == 0)
    st = oc_backend_open_cuda(NULL, &d->backend);
  else
    return oct_fault(why, "--backend: '%s' is none; host and cuda are", oct_quote(&q, backend));
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "opening the %s backend", backend);
  d->ops = oc_backend_table(d->backend);
  d->self = oc_backend_self(d->backend);
  if (d->ops->copy_h2d && d->ops->copy_d2h && d->ops->synchronize && d->ops->stream_create && d->ops->stream_destroy &&
      d->ops->launch && d->ops->mem_info)
    return true;
  oct_device_close(d, why);
  return oct_fault(why, "the %s backend has no copies, streams, launches or memory figures", backend);
}

bool oct_device_close(struct device *d, struct fault *why)
{
  oc_status st = d->backend ? oc_backend_close(d->backend) : OC_OK;

  if (st != OC_OK)
    return oct_liboc_fault(why, st, "closing the backend");
  d->backend = NULL;
  return true;
}

bool oct_copy_in(const struct device *d, oc_devptr to, const void *from, size_t n, oc_stream s, struct fault *why)
{
  oc_status st = d->ops->copy_h2d(d->self, to, from, n, s);

  return st == OC_OK || entry_fault(d, st, "copy_h2d", why);
}

bool oct_copy_out(const struct device *d, void *to, oc_devptr from, size_t n, oc_stream s, struct fault *why)
{
  oc_status st = d->ops->copy_d2h(d->self, to, from, n, s);

  return st == OC_OK || entry_fault(d, st, "copy_d2h", why);
}

bool oct_wait(const struct device *d, oc_stream s, struct fault *why)
{
  oc_status st = d->ops->synchronize(d->self, s);

  return st == OC_OK || entry_fault(d, st, "synchronize", why);
}

bool oct_stream_create(const struct device *d, oc_stream *s, struct fault *why)
{
  oc_status st = d->ops->stream_create(d->self, s);

  return st == OC_OK || entry_fault(d, st, "stream_create", why);
}

bool oct_stream_destroy(const struct device *d, oc_stream s, struct fault *why)
{
  oc_status st = d->ops->stream_destroy(d->self, s);

  return st == OC_OK || entry_fault(d, st, "stream_destroy", why);
}

bool oct_launch(const struct device *d, oc_kernel k, struct shape shape, const uint64_t *params, size_t count,
                oc_stream s, struct fault *why)
{
  const uint32_t grid[3] = {shape.blocks, 1, 1}, block[3] = {shape.threads, 1, 1};
  void *at[PARAMS_MAX];
  oc_status st;

  for (size_t i = 0; i < count; i++)
    at[i] = (void *)(uintptr_t)&params[i];
  st = d->ops->launch(d->self, k, grid, block, 0, s, at);
  return st == OC_OK || entry_fault(d, st, "launch", why);
}

bool oct_host_alloc(const struct device *d, size_t bytes, unsigned char **out, struct fault *why)
{
  void *p = NULL;
  oc_status st;

  if (!d->ops->host_alloc || !d->ops->host_free) {
    *out = malloc(bytes);
    return *out || oct_fault(why, "no memory for %zu bytes", bytes);
  }
  st = d->ops->host_alloc(d->self, bytes, &p);
  *out = p;
  return st == OC_OK || entry_fault(d, st, "host_alloc", why);
}

void oct_host_free(const struct device *d, unsigned char *p)
{
  if (!d->ops->host_alloc || !d->ops->host_free)
    free(p);
  else
    (void)!d->ops->host_free(d->self, p);
}

static bool embedded_account(const struct device *d, struct device_account *a, struct fault *why)
{
  oc_host_stats stats = {.struct_size = sizeof stats};
  oc_status st = oc_host_get_stats(d->backend, &stats);

  if (st != OC_OK)
    return oct_liboc_fault(why, st, "the device's figures");
  *a = (struct device_account){.counts = true, .used = stats.device_used + stats.managed_used,
                               .stale_launches = stats.stale_launches, .frees = oc_host_calls(d->backend, "free")};
  return true;
}

bool oct_device_account(const struct device *d, struct device_account *a, struct fault *why)
{
  size_t free_bytes, total;
  oc_status st;

  if (strcmp(d->ops->name, "host") == 0)
    return embedded_account(d, a, why);
  st = d->ops->mem_info(d->self, &free_bytes, &total);
  if (st != OC_OK)
    return entry_fault(d, st, "mem_info", why);
  *a = (struct device_account){.used = total - free_bytes};
  return true;
}
