package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// protoMagic is the prefix of every protobuf response (k8s.io/apimachinery runtime.Unknown).
const protoMagic = "k8s\x00"

// protoMessage is implemented by generated Kubernetes types.
type protoMessage interface{ Marshal() ([]byte, error) }

// writeObject encodes and sends an object that is not in the cache.
func (s *Server) writeObject(w http.ResponseWriter, req *http.Request, n answer, code int, obj runtime.Object) {
	if obj.GetObjectKind().GroupVersionKind().Kind == "" {
		if status, ok := obj.(*metav1.Status); ok { // Status has no group, but is registered in every group
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		} else if gvk, err := apiutil.GVKForObject(obj, clientscheme.Scheme); err == nil {
			obj.GetObjectKind().SetGroupVersionKind(gvk)
		}
	}
	if n.media == mediaProto {
		if m, ok := obj.(protoMessage); ok {
			raw, err := m.Marshal()
			if err == nil {
				w.Header().Set("Content-Type", n.mediaType())
				gvk := obj.GetObjectKind().GroupVersionKind()
				s.writeBytes(w, req, code, envelope(nil, gvk, len(raw)), raw, []byte(envelopeTail))
				return
			}
		}
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		s.log.Error("could not encode object", "type", fmt.Sprintf("%T", obj), "error", err)
		http.Error(w, "the response could not be encoded", http.StatusInternalServerError)
		return
	}
	s.writeJSON(w, req, n, code, raw)
}

// writeJSON sends one JSON document as JSON, indented JSON or YAML.
func (s *Server) writeJSON(w http.ResponseWriter, req *http.Request, n answer, code int, raw []byte) {
	if n.media == mediaProto { // the object has no protobuf form
		n.media = mediaJSON
	}
	switch {
	case n.media == mediaYAML && len(raw) <= maxYAMLAnswer:
		y, err := yaml.JSONToYAML(raw)
		if err != nil {
			s.fail(w, req, apierrors.NewInternalError(err))
			return
		}
		w.Header().Set("Content-Type", n.mediaType())
		s.writeBytes(w, req, code, y)
	case n.pretty:
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			s.fail(w, req, apierrors.NewInternalError(err))
			return
		}
		w.Header().Set("Content-Type", n.mediaType())
		s.writeBytes(w, req, code, b.Bytes())
	default:
		w.Header().Set("Content-Type", n.mediaType())
		s.writeBytes(w, req, code, raw, newline)
	}
}

// maxYAMLAnswer is the size of JSON above which it is sent unchanged to a client that asked for YAML: JSON is YAML too,
// and to convert a megabyte takes a second.
const maxYAMLAnswer = 512 << 10

var newline = []byte("\n") //nolint:gochecknoglobals // a constant

// writeBytes sends parts as one response body. The caller has set Content-Type.
func (s *Server) writeBytes(w http.ResponseWriter, req *http.Request, code int, parts ...[]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	out, done := body(w, req, code, size)
	defer done()
	for _, p := range parts {
		if _, err := out.Write(p); err != nil {
			return
		}
	}
}

// compressOver is the size in bytes above which responses are compressed, as upstream.
const compressOver = 128 << 10

// bodyBuffer is the size of the buffer in front of a connection, and of the chunks of longer responses. With its 9
// byte header, such an HTTP/2 frame fills one TLS record (RFC 9113, section 4.1; RFC 8446, section 5.1). A full-size
// frame would take two records and so two system calls on each side.
const bodyBuffer = 16<<10 - 9

var buffers = sync.Pool{
	New: func() any { return &bodyWriter{buf: make([]byte, 0, bodyBuffer)} },
} //nolint:gochecknoglobals // a pool

// bodyWriter buffers small writes and passes large ones through.
type bodyWriter struct {
	w   io.Writer
	buf []byte
}

func (b *bodyWriter) Write(p []byte) (int, error) {
	if len(b.buf)+len(p) > bodyBuffer {
		if err := b.flush(); err != nil {
			return 0, err
		}
	}
	n := len(p)
	for ; len(p) >= bodyBuffer; p = p[bodyBuffer:] {
		if _, err := b.w.Write(p[:bodyBuffer]); err != nil {
			return 0, err
		}
	}
	b.buf = append(b.buf, p...)
	return n, nil
}

func (b *bodyWriter) flush() error {
	if len(b.buf) == 0 {
		return nil
	}
	_, err := b.w.Write(b.buf)
	b.buf = b.buf[:0]
	return err
}

// body starts a response of size bytes and returns its writer. A size of -1 means unknown; the response is then
// compressed if the client accepts gzip. The caller must call done at the end.
func body(w http.ResponseWriter, req *http.Request, code, size int) (io.Writer, func()) {
	h := w.Header()
	b := buffers.Get().(*bodyWriter)
	if packed := h.Get("Content-Encoding") != ""; !packed && (size < 0 || size > compressOver) && acceptsGzip(req) &&
		!onLoopback(req) {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		w.WriteHeader(code)
		z := &packer{w: w}
		b.w = z
		return b, func() {
			defer z.release()
			_ = b.flush()
			_ = z.Close()
			b.w = nil
			buffers.Put(b)
		}
	}
	if size >= 0 {
		h.Set("Content-Length", itoa(int64(size)))
	}
	w.WriteHeader(code)
	b.w = w
	return b, func() {
		_ = b.flush()
		b.w = nil
		buffers.Put(b)
	}
}

func acceptsGzip(req *http.Request) bool {
	for part := range strings.SplitSeq(req.Header.Get("Accept-Encoding"), ",") {
		if name, _, _ := strings.Cut(strings.TrimSpace(part), ";"); name == "gzip" {
			return true
		}
	}
	return false
}

// onLoopback reports whether the client is on this machine: on a loopback address, or on the address it connected to.
func onLoopback(req *http.Request) bool {
	host, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		return req.RemoteAddr == "" // an in-process request
	}
	if local, ok := req.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && local.IP.String() == host {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// envelopeTail ends a runtime.Unknown: an empty content encoding and content type.
const envelopeTail = "\x1a\x00\x22\x00"

// envelope appends the head of a runtime.Unknown for an object of gvk with size bytes. The caller appends the object
// and envelopeTail.
func envelope(b []byte, gvk schema.GroupVersionKind, size int) []byte {
	gv := gvk.GroupVersion().String()
	b = append(b, protoMagic...)
	meta := protoStringSize(gv) + protoStringSize(gvk.Kind)
	b = append(b, 0x0a)
	b = binary.AppendUvarint(b, uint64(meta))
	b = protoString(b, 0x0a, gv)
	b = protoString(b, 0x12, gvk.Kind)
	b = append(b, 0x12)
	return binary.AppendUvarint(b, uint64(size))
}

func protoStringSize(s string) int { return 1 + uvarintSize(uint64(len(s))) + len(s) }

func protoString(b []byte, tag byte, s string) []byte {
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func uvarintSize(n uint64) int {
	size := 1
	for n >= 0x80 {
		n >>= 7
		size++
	}
	return size
}
