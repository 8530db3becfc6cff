/* A server of streamed chat completions that is faster than its clients and logs what it sent when.
 *
 *   cc -O2 -o sse_server sse_server.c
 *   ./sse_server --port 9000 [--ttft MS --itl MS] [--burst K] [--log FILE] [--stats FILE]
 *
 * One thread, epoll, 127.0.0.1. Without --ttft/--itl every stream is served as fast as it goes, one event (or
 * --burst K events in one write) a turn; with them the first token comes ttft ms after the request and the
 * next ones every itl ms on absolute times. A request's length is its max_tokens (else 128), and usage follows
 * the last token. The log has for each request, as native u64: the body's "seed" (else a running number), when
 * the request was complete, the number of tokens, and when each was sent (CLOCK_MONOTONIC ns, just before the
 * write). Only what the benchmark's clients send is understood; this is no general HTTP server. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 20000, MAX_EVENTS = 512, EVENT_BYTES = 512, DEFAULT_TOKENS = 128 };
typedef uint64_t u64;

typedef struct {
    int fd, active, place; /* place: index in the heap or in the list of active streams */
    char *in, *out;
    size_t in_len, in_cap, out_len, out_pos, out_cap;
    u64 tag, t_received, due;
    u64 *stamps;
    size_t stamp_cap;
    int n_tokens, n_sent;
    char event[EVENT_BYTES + 16]; /* one framed token event; only its three digits change */
    int event_len, digits_at;
} Stream;

static Stream *streams[MAX_FD], *queue[MAX_FD]; /* queue: a heap by due when paced, else a list */
static int n_queue, epoll_fd, paced, burst = 1;
static u64 ttft_ns, itl_ns, n_requests, n_done, n_tokens_sent, n_connections, n_writes;
static u64 t_first, t_last, t_level;
static int in_flight, max_in_flight;
static double in_flight_area;
static FILE *log_file;
static volatile sig_atomic_t stopping;

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

static void *grown(void *block, size_t bytes) {
    block = realloc(block, bytes);
    if (!block) {
        perror("sse_server: memory");
        exit(1);
    }
    return block;
}

static void change_in_flight(int by) {
    u64 t = now_ns();
    if (t_level) in_flight_area += (double)in_flight * (double)(t - t_level);
    t_level = t;
    in_flight += by;
    if (in_flight > max_in_flight) max_in_flight = in_flight;
}

/* ---------------------------------------------------------------- queue */

static void put_at(int place, Stream *s) {
    queue[place] = s;
    s->place = place;
}

static void sift_up(int i) {
    Stream *s = queue[i];
    for (; i && queue[(i - 1) / 2]->due > s->due; i = (i - 1) / 2) put_at(i, queue[(i - 1) / 2]);
    put_at(i, s);
}

static void sift_down(int i) {
    Stream *s = queue[i];
    for (;;) {
        int child = 2 * i + 1;
        if (child >= n_queue) break;
        if (child + 1 < n_queue && queue[child + 1]->due < queue[child]->due) child++;
        if (queue[child]->due >= s->due) break;
        put_at(i, queue[child]);
        i = child;
    }
    put_at(i, s);
}

static void enqueue(Stream *s) {
    put_at(n_queue++, s);
    if (paced) sift_up(s->place);
}

static void dequeue(Stream *s) {
    int place = s->place;
    if (place < 0) return;
    Stream *last = queue[--n_queue];
    s->place = -1;
    if (last == s) return;
    put_at(place, last);
    if (paced) {
        sift_up(place);
        sift_down(last->place);
    }
}

/* ---------------------------------------------------------------- sending */

static int flush(Stream *s) { /* -1: the connection broke */
    while (s->out_pos < s->out_len) {
        ssize_t n = send(s->fd, s->out + s->out_pos, s->out_len - s->out_pos, MSG_NOSIGNAL);
        n_writes++;
        if (n < 0) {
            if (errno != EAGAIN) return -1;
            struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT, .data.fd = s->fd};
            epoll_ctl(epoll_fd, EPOLL_CTL_MOD, s->fd, &wanted);
            return 0;
        }
        s->out_pos += (size_t)n;
    }
    s->out_pos = s->out_len = 0;
    return 0;
}

static void put(Stream *s, const void *data, size_t n) {
    if (s->out_len + n > s->out_cap) s->out = grown(s->out, s->out_cap = 2 * (s->out_len + n) + 4096);
    memcpy(s->out + s->out_len, data, n);
    s->out_len += n;
}

static void put_chunk(Stream *s, const char *text, int n) {
    char size[16];
    put(s, size, (size_t)sprintf(size, "%x\r\n", n));
    put(s, text, (size_t)n);
    put(s, "\r\n", 2);
}

static void prepare_event(Stream *s) {
    char data[EVENT_BYTES];
    int n = sprintf(data,
                    "data: {\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                    "\"model\":\"mock-model\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" w000\"},"
                    "\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n",
                    (unsigned long long)n_requests);
    s->event_len = sprintf(s->event, "%x\r\n%s\r\n", n, data);
    s->digits_at = (int)(strstr(s->event, " w000") - s->event) + 2;
}

static void finish(Stream *s, int complete) {
    if (!s->active) return;
    s->active = 0;
    dequeue(s);
    change_in_flight(-1);
    t_last = now_ns();
    n_done += (u64)complete;
    if (log_file) {
        u64 head[3] = {s->tag, s->t_received, (u64)s->n_sent};
        fwrite(head, sizeof head, 1, log_file);
        fwrite(s->stamps, sizeof(u64), (size_t)s->n_sent, log_file);
    }
}

static void put_end(Stream *s) {
    char text[EVENT_BYTES];
    int n = sprintf(text,
                    "data: {\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                    "\"model\":\"mock-model\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
                    (unsigned long long)n_requests);
    put_chunk(s, text, n);
    n = sprintf(text,
                "data: {\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                "\"model\":\"mock-model\",\"choices\":[],\"usage\":{\"prompt_tokens\":64,\"total_tokens\":%d,"
                "\"completion_tokens\":%d}}\n\n",
                (unsigned long long)n_requests, s->n_tokens + 64, s->n_tokens);
    put_chunk(s, text, n);
    put_chunk(s, "data: [DONE]\n\n", 14);
    put(s, "0\r\n\r\n", 5);
}

/* One turn of a stream: its next event, or the next `burst` of them in one write. */
static int emit(Stream *s) {
    int last = 0;
    for (int i = 0; i < burst && !last; i++) {
        int number = s->n_sent % 1000;
        s->event[s->digits_at] = (char)('0' + number / 100);
        s->event[s->digits_at + 1] = (char)('0' + number / 10 % 10);
        s->event[s->digits_at + 2] = (char)('0' + number % 10);
        s->stamps[s->n_sent++] = now_ns();
        put(s, s->event, (size_t)s->event_len);
        n_tokens_sent++;
        last = s->n_sent == s->n_tokens;
        if (last) put_end(s);
    }
    int broke = flush(s);
    if (last) finish(s, 1); /* after the write: the log's own writing must not delay it */
    return broke;
}

/* ---------------------------------------------------------------- requests */

static u64 number_after(const char *body, const char *key, u64 otherwise) {
    const char *at = strstr(body, key);
    if (!at) return otherwise;
    at += strlen(key);
    while (*at == ' ' || *at == ':') at++;
    return *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : otherwise;
}

static void answer(Stream *s, const char *type, const char *text) {
    char head[256];
    put(s, head,
        (size_t)sprintf(head, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", type,
                        strlen(text)));
    put(s, text, strlen(text));
}

static int start(Stream *s, const char *head, const char *body) {
    if (strncmp(head, "POST ", 5)) {
        if (strstr(head, "/models"))
            answer(s, "application/json",
                   "{\"object\":\"list\",\"data\":[{\"id\":\"mock-model\",\"object\":\"model\",\"max_model_len\":32768}]}");
        else
            answer(s, "text/plain", "");
        return flush(s);
    }
    s->t_received = now_ns();
    if (!t_first) t_first = s->t_received;
    s->tag = number_after(body, "\"seed\"", n_requests);
    s->n_tokens = (int)number_after(body, "\"max_completion_tokens\"",
                                    number_after(body, "\"max_tokens\"", DEFAULT_TOKENS));
    if (s->n_tokens < 1) s->n_tokens = 1;
    s->n_sent = 0;
    if ((size_t)s->n_tokens > s->stamp_cap)
        s->stamps = grown(s->stamps, sizeof(u64) * (s->stamp_cap = (size_t)s->n_tokens));
    prepare_event(s);
    n_requests++;
    s->active = 1;
    change_in_flight(1);
    const char *headers = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                          "transfer-encoding: chunked\r\n\r\n";
    const char *role = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                       "\"finish_reason\":null}]}\n\n";
    put(s, headers, strlen(headers));
    put_chunk(s, role, (int)strlen(role));
    s->due = s->t_received + ttft_ns;
    enqueue(s);
    return flush(s);
}

/* Serve the requests that are complete; -1 when the connection is of no more use. */
static int serve(Stream *s) {
    while (!s->active && s->in_len) {
        s->in[s->in_len] = 0;
        char *end = memmem(s->in, s->in_len, "\r\n\r\n", 4);
        if (!end) return 0;
        *end = 0;
        char *length = strcasestr(s->in, "\r\ncontent-length:");
        size_t body_len = length ? strtoul(length + 17, NULL, 10) : 0;
        size_t head_len = (size_t)(end - s->in) + 4;
        if (s->in_len < head_len + body_len) {
            *end = '\r';
            return 0;
        }
        char kept = s->in[head_len + body_len];
        s->in[head_len + body_len] = 0;
        int broke = start(s, s->in, s->in + head_len);
        s->in[head_len + body_len] = kept;
        s->in_len -= head_len + body_len;
        memmove(s->in, s->in + head_len + body_len, s->in_len);
        if (broke < 0) return -1;
    }
    return 0;
}

static int receive(Stream *s) {
    for (;;) {
        if (s->in_cap - s->in_len < 8192) s->in = grown(s->in, (s->in_cap = 2 * s->in_cap + 16384) + 1);
        ssize_t n = recv(s->fd, s->in + s->in_len, s->in_cap - s->in_len, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return -1;
        if (n < 0) break;
        s->in_len += (size_t)n;
    }
    return serve(s);
}

static void drop(Stream *s) {
    finish(s, 0);
    streams[s->fd] = NULL;
    close(s->fd);
    free(s->in);
    free(s->out);
    free(s->stamps);
    free(s);
}

static void greet(int listener) {
    for (;;) {
        int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        if (fd >= MAX_FD) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Stream *s = calloc(1, sizeof *s);
        if (!s) exit(1);
        s->fd = fd;
        s->place = -1;
        streams[fd] = s;
        n_connections++;
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &wanted);
    }
}

/* ---------------------------------------------------------------- the loop */

static void turn(void) {
    if (!paced) {
        for (int i = 0; i < n_queue;) {
            Stream *s = queue[i];
            if (s->out_len) { /* the client does not take more: leave it until it does */
                i++;
                continue;
            }
            if (emit(s) < 0 || (!s->active && serve(s) < 0)) drop(s);
            else if (s->place == i) i++;
        }
        return;
    }
    u64 t = now_ns();
    for (int n = 0; n_queue && queue[0]->due <= t && n < 256; n++) {
        Stream *s = queue[0];
        if (emit(s) < 0 || (!s->active && serve(s) < 0)) drop(s);
        else if (s->active && s->place == 0) {
            s->due += itl_ns;
            sift_down(0);
        }
    }
}

static void wait_and_handle(int listener) {
    struct epoll_event events[MAX_EVENTS];
    struct timespec patience = {0, 0}, *limit = NULL;
    if (n_queue) {
        u64 t = now_ns();
        u64 left = paced && queue[0]->due > t ? queue[0]->due - t : 0;
        patience.tv_sec = (time_t)(left / 1000000000ull);
        patience.tv_nsec = (long)(left % 1000000000ull);
        limit = &patience;
    }
    int n = epoll_pwait2(epoll_fd, events, MAX_EVENTS, limit, NULL);
    for (int i = 0; i < n; i++) {
        int fd = events[i].data.fd;
        if (fd == listener) {
            greet(listener);
            continue;
        }
        Stream *s = streams[fd];
        if (!s) continue;
        if (events[i].events & EPOLLOUT) {
            struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fd};
            epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &wanted);
            if (flush(s) < 0) {
                drop(s);
                continue;
            }
        }
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && receive(s) < 0) drop(s);
    }
}

static void stop(int number) {
    (void)number;
    stopping = 1;
}

static void write_stats(const char *path) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6 + (double)used.ru_stime.tv_sec +
                 (double)used.ru_stime.tv_usec / 1e6;
    double wall = (double)(t_last - t_first) / 1e9;
    FILE *file = path ? fopen(path, "w") : stdout;
    if (!file) return;
    fprintf(file,
            "{\"connections\":%llu,\"requests\":%llu,\"done\":%llu,\"tokens\":%llu,\"writes\":%llu,"
            "\"max_in_flight\":%d,\"mean_in_flight\":%.3f,\"wall_s\":%.6f,\"cpu_s\":%.3f}\n",
            (unsigned long long)n_connections, (unsigned long long)n_requests, (unsigned long long)n_done,
            (unsigned long long)n_tokens_sent, (unsigned long long)n_writes, max_in_flight,
            wall > 0 ? in_flight_area / 1e9 / wall : 0, wall, cpu);
    fclose(file);
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"port", 1, 0, 'p'},  {"ttft", 1, 0, 't'},  {"itl", 1, 0, 'i'},
                                            {"burst", 1, 0, 'b'}, {"log", 1, 0, 'l'},   {"stats", 1, 0, 's'},
                                            {0, 0, 0, 0}};
    int port = 9000, option, one = 1;
    const char *stats_path = NULL;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) switch (option) {
            case 'p': port = atoi(optarg); break;
            case 't': ttft_ns = (u64)(atof(optarg) * 1e6); break;
            case 'i': itl_ns = (u64)(atof(optarg) * 1e6); break;
            case 'b': burst = atoi(optarg); break;
            case 'l':
                log_file = fopen(optarg, "wb");
                if (log_file) setvbuf(log_file, NULL, _IOFBF, 1 << 20);
                break;
            case 's': stats_path = optarg; break;
            default: return 2;
        }
    paced = ttft_ns || itl_ns;
    prctl(PR_SET_TIMERSLACK, 1);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
        perror("sse_server");
        return 1;
    }
    epoll_fd = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &wanted);
    while (!stopping) {
        wait_and_handle(listener);
        turn();
    }
    for (int fd = 0; fd < MAX_FD; fd++)
        if (streams[fd]) finish(streams[fd], 0);
    if (log_file) fclose(log_file);
    write_stats(stats_path);
    return 0;
}
