package apiserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"k8s.io/utils/ptr"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// bookmarkEvery is the interval of bookmarks, as upstream.
const bookmarkEvery = time.Minute

type watching struct {
	s   *Server
	t   registry.Target
	n   answer
	o   metav1.ListOptions
	ctx context.Context //nolint:containedctx // the request's context
	rc  *http.ResponseController
	to  io.Writer
	// out buffers writes to the connection. It is set only while a batch is written: an idle watch has no buffer.
	out *bodyWriter
	// packed, if set, compresses the stream.
	packed *packer
	table  *metav1.TableOptions
	// message and send are set for a WebSocket: an event is buffered in message, and send sends it.
	message *bytes.Buffer
	send    func() error
	// columns is true after the first Table event, which has the column definitions.
	columns    bool
	scratch    []byte
	sentEvents prometheus.Counter
	// rev is the revision up to which all events have been sent.
	rev int64
	// refused, if set, is sent as the only event.
	refused error
}

func (s *Server) watch(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, can(t.Resource)|mayStream)
	if err != nil {
		return err
	}
	o, err := listOptions(req)
	if err != nil {
		return err
	}
	o.Watch = true
	if o.SendInitialEvents == nil && o.ResourceVersionMatch == "" &&
		(o.ResourceVersion == "" || o.ResourceVersion == "0") {
		// As upstream, such a watch begins with all objects, followed by a bookmark if the client allows bookmarks.
		o.SendInitialEvents, o.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
	}
	live := s.cfg.MinWatch + rand.N(s.cfg.MinWatch)
	if o.TimeoutSeconds != nil {
		live = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(req.Context(), live)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	v := &watching{s: s, t: t, n: n, o: o, ctx: ctx, rc: http.NewResponseController(w)}
	if n.as.Kind == "Table" {
		if v.table, err = tableOptions(req); err != nil {
			return err
		}
	}
	watcher, initial, sync, err := s.cfg.Registry.Watch(ctx, t, o)
	switch {
	case err == nil:
		defer watcher.Close()
	case outOfReach(err):
		v.refused = err
	default:
		return err
	}
	v.sentEvents = s.metrics.events(t.Resource)

	v.rev = sync
	if wsstream.IsWebSocketRequest(req) {
		v.webSocket(w, req, cancel, watcher, initial, sync)
		return nil
	}
	media := typeJSON
	if n.media == mediaProto {
		media = typeProto + ";stream=watch"
	}
	w.Header().Set("Content-Type", media)
	v.to = w
	// As upstream (WatchListCompression), compress a watch that replaces a list like a list.
	if v.listing() && acceptsGzip(req) && !onLoopback(req) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		v.packed = &packer{w: w}
		defer v.packed.release()
		v.to = v.packed
	}
	w.WriteHeader(http.StatusOK)
	defer v.release()
	err = v.run(watcher, initial, sync)
	if v.packed != nil && err == nil {
		err = v.packed.Close()
	}
	if err != nil {
		s.log.Debug("watch ended", "resource", t.Resource.Plural, "error", err)
	}
	return nil
}

// outOfReach reports whether err means that the watch's revision is too old or too new. Upstream sends it as an
// event.
func outOfReach(err error) bool {
	return apierrors.IsResourceExpired(err) || storage.IsTooLargeResourceVersion(err)
}

// listing reports whether the watch begins with all objects, followed by a bookmark (KEP-3157).
func (v *watching) listing() bool {
	return ptr.Deref(v.o.SendInitialEvents, false) && v.o.AllowWatchBookmarks
}

func (v *watching) run(watcher *cache.Watcher, initial []*cache.Entry, sync int64) error {
	if v.refused != nil {
		return v.last(v.refused)
	}
	for _, e := range initial {
		if err := v.event(watch.Added, e); err != nil {
			return err
		}
	}
	v.sentEvents.Add(float64(len(initial)))
	if v.listing() {
		if err := v.bookmark(sync, true); err != nil {
			return err
		}
	}
	if err := v.flush(); err != nil {
		return err
	}
	next := time.Now().Add(bookmarkEvery)
	for {
		ctx, cancel := v.ctx, context.CancelFunc(func() {})
		if v.o.AllowWatchBookmarks {
			ctx, cancel = context.WithDeadline(v.ctx, next)
		}
		events, err := watcher.Next(ctx)
		cancel()
		switch {
		case err == nil:
		case v.ctx.Err() != nil:
			if v.o.AllowWatchBookmarks && errors.Is(v.ctx.Err(), context.DeadlineExceeded) {
				if err := v.progress(watcher); err != nil {
					return err
				}
				return v.flush()
			}
			return v.flush()
		case errors.Is(err, context.DeadlineExceeded):
			next = time.Now().Add(bookmarkEvery)
			if err := v.progress(watcher); err != nil {
				return err
			}
		case errors.Is(err, cache.ErrRemoved): // as upstream, the watch of a custom resource ends with its definition
			return v.flush()
		default:
			if errors.Is(err, cache.ErrExpired) {
				err = apierrors.NewResourceExpired("too old resource version: the watch fell behind; list again")
			}
			return v.last(err)
		}
		for i := range events {
			e := &events[i]
			v.rev = max(v.rev, e.Rev)
			if watch.EventType(e.Type) == watch.Bookmark {
				if v.o.AllowWatchBookmarks {
					if err := v.bookmark(e.Rev, false); err != nil {
						return err
					}
				}
				continue
			}
			entry, err := e.Entry.In(v.t.Resource)
			if err != nil {
				err = apierrors.NewInternalError(err)
			} else {
				err = v.event(watch.EventType(e.Type), entry)
			}
			if err != nil {
				return err
			}
		}
		v.sentEvents.Add(float64(len(events)))
		if err := v.flush(); err != nil {
			return err
		}
	}
}

// last sends an error event. The caller then ends the watch.
func (v *watching) last(err error) error {
	if err := v.object(watch.Error, statusOf(err)); err != nil {
		return err
	}
	return v.flush()
}

func (v *watching) Write(p []byte) (int, error) {
	if v.message != nil {
		return v.message.Write(p)
	}
	if v.out == nil {
		v.out = buffers.Get().(*bodyWriter)
		v.out.w = v.to
	}
	return v.out.Write(p)
}

// flush sends buffered bytes, or the header if nothing has been written.
func (v *watching) flush() error {
	if v.message != nil {
		return nil
	}
	if v.out != nil {
		err := v.out.flush()
		v.release()
		if err != nil {
			return err
		}
	}
	if v.packed != nil {
		if err := v.packed.Flush(); err != nil {
			return err
		}
	}
	return v.rc.Flush()
}

func (v *watching) release() {
	if v.out != nil {
		v.out.w, v.out.buf = nil, v.out.buf[:0]
		buffers.Put(v.out)
		v.out = nil
	}
}

// event writes an event with the object's cached encoding.
func (v *watching) event(kind watch.EventType, e *cache.Entry) error {
	switch v.n.as.Kind {
	case "":
		if v.n.media == mediaProto {
			return v.proto(kind, v.t.Resource.GroupVersionKind, e.Proto())
		}
		return v.json(kind, e.JSON())
	case "Table":
		table, err := rows(v.ctx, v.t, e.Object, e, v.table, v.n.as.GroupVersion())
		if err != nil {
			return err
		}
		if v.columns || v.table.NoHeaders {
			table.ColumnDefinitions = nil
		}
		v.columns = true
		return v.object(kind, table)
	default:
		p, err := partial(e.Object, v.n.as.GroupVersion())
		if err != nil {
			return err
		}
		return v.object(kind, p)
	}
}

// object writes an event for an object that is not in the cache.
func (v *watching) object(kind watch.EventType, obj runtime.Object) error {
	if v.n.media == mediaProto {
		raw, err := obj.(protoMessage).Marshal()
		if err != nil {
			return err
		}
		return v.proto(kind, obj.GetObjectKind().GroupVersionKind(), raw)
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	return v.json(kind, raw)
}

func (v *watching) json(kind watch.EventType, raw []byte) error {
	v.scratch = append(append(append(v.scratch[:0], `{"type":"`...), kind...), `","object":`...)
	if _, err := v.Write(v.scratch); err != nil {
		return err
	}
	if _, err := v.Write(raw); err != nil {
		return err
	}
	if _, err := v.Write([]byte("}\n")); err != nil {
		return err
	}
	return v.sent()
}

// sent is called after each event. It sends the buffered message of a WebSocket.
func (v *watching) sent() error {
	if v.message == nil {
		return nil
	}
	return v.send()
}

// proto writes a length-delimited metav1.WatchEvent with the object in an envelope, as upstream.
func (v *watching) proto(kind watch.EventType, gvk schema.GroupVersionKind, raw []byte) error {
	head := envelope(v.scratch[:0], gvk, len(raw))
	v.scratch = head
	object := len(head) + len(raw) + len(envelopeTail)
	extension := 1 + uvarintSize(uint64(object)) + object
	size := protoStringSize(string(kind)) + 1 + uvarintSize(uint64(extension)) + extension
	var b [64]byte
	f := binary.BigEndian.AppendUint32(b[:0], uint32(size))
	f = protoString(f, 0x0a, string(kind))
	f = binary.AppendUvarint(append(f, 0x12), uint64(extension))
	f = binary.AppendUvarint(append(f, 0x0a), uint64(object))
	for _, p := range [][]byte{f, head, raw, []byte(envelopeTail)} {
		if _, err := v.Write(p); err != nil {
			return err
		}
	}
	return v.sent()
}

// progress sends a bookmark, unless events are waiting, as they may always be for a slow client or a busy kind. A
// client resumes after the bookmark's revision, so it must not pass unsent events. A watch from a future revision
// gets no bookmark before that revision.
func (v *watching) progress(watcher *cache.Watcher) error {
	if watcher.Ahead() {
		return nil
	}
	v.rev = max(v.rev, watcher.Progress())
	return v.bookmark(v.rev, false)
}

// bookmark sends a BOOKMARK event for a revision. end marks the bookmark after the initial events (KEP-3157).
func (v *watching) bookmark(rev int64, end bool) error {
	obj := v.t.Resource.New()
	obj.GetObjectKind().SetGroupVersionKind(v.t.Resource.GroupVersionKind)
	obj.SetResourceVersion(itoa(rev))
	if end {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	switch v.n.as.Kind {
	case "":
		return v.object(watch.Bookmark, obj)
	case "Table":
		p, err := partial(obj, v.n.as.GroupVersion())
		if err != nil {
			return err
		}
		raw, err := json.Marshal(p)
		if err != nil {
			return err
		}
		table := &metav1.Table{
			TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: v.n.as.GroupVersion().String()},
			ListMeta: metav1.ListMeta{ResourceVersion: itoa(rev)},
			Rows:     []metav1.TableRow{{Cells: []any{}, Object: runtime.RawExtension{Raw: raw}}},
		}
		return v.object(watch.Bookmark, table)
	default:
		p, err := partial(obj, v.n.as.GroupVersion())
		if err != nil {
			return err
		}
		return v.object(watch.Bookmark, p)
	}
}
