package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// can returns the response forms that objects of a kind have.
func can(r *kind.Resource) may {
	c := mayTable
	if r.Table == nil {
		c = 0
	}
	if r.Proto {
		c |= mayProto
	}
	return c
}

func (s *Server) get(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, s.forms(t))
	if err != nil {
		return err
	}
	var o metav1.GetOptions
	values := req.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_GetOptions(&values, &o, nil); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	res, err := s.objects(t.Resource).Get(req.Context(), t, o)
	if err != nil {
		return err
	}
	return s.writeResult(w, req, n, http.StatusOK, t, res)
}

// forms returns the response forms that the target has.
func (s *Server) forms(t registry.Target) may {
	if sub := t.Resource.Subresource(t.Subresource); sub != nil {
		return mayProto | mayTable
	}
	return can(t.Resource)
}

// writeResult responds with an object. It uses the cached encoding if there is one.
func (s *Server) writeResult(w http.ResponseWriter, req *http.Request, n answer, code int, t registry.Target,
	res registry.Result) error {
	auditResult(req.Context(), res)
	if n.as.Kind != "" {
		obj, err := res.Value()
		if err != nil {
			return err
		}
		return s.writeConverted(w, req, n, code, t, obj, res.Entry)
	}
	if res.Entry == nil {
		if res.Object == nil {
			return apierrors.NewInternalError(errNoAnswer)
		}
		s.writeObject(w, req, n, code, res.Object)
		return nil
	}
	if n.media == mediaProto {
		if raw := res.Entry.Proto(); raw != nil {
			w.Header().Set("Content-Type", typeProto)
			s.writeBytes(w, req, code, envelope(nil, t.Resource.GroupVersionKind, len(raw)), raw, []byte(envelopeTail))
			return nil
		}
		n.media = mediaJSON
	}
	s.writeJSON(w, req, n, code, res.Entry.JSON())
	return nil
}

func (s *Server) list(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, can(t.Resource))
	if err != nil {
		return err
	}
	o, err := listOptions(req)
	if err != nil {
		return err
	}
	l, err := s.objects(t.Resource).List(req.Context(), t, o)
	if err != nil {
		return err
	}
	return s.writeList(w, req, n, t, l)
}

func (s *Server) writeList(w http.ResponseWriter, req *http.Request, n answer, t registry.Target,
	l *registry.List) error {
	meta := metav1.ListMeta{ResourceVersion: itoa(l.Revision), Continue: l.Continue, RemainingItemCount: l.Remaining}
	auditList(req.Context(), t, meta, l.Entries)
	gvk := t.Resource.ListGVK()
	switch {
	case n.as.Kind == "Table":
		return s.writeTable(w, req, n, t, meta, l.Entries)
	case n.as.Kind == "PartialObjectMetadataList":
		return s.writePartials(w, req, n, meta, l.Entries)
	case n.as.Kind != "":
		return notAcceptable("you requested PartialObjectMetadata, but the requested object is a list (" + gvk.Kind + ")")
	case n.media == mediaProto:
		return s.streamProto(w, req, gvk, meta, l.Entries)
	case n.media == mediaYAML || n.pretty:
		// YAML and indented JSON are rare and for people, so the list is built whole.
		var b bytes.Buffer
		_ = streamJSON(&b, gvk, meta, l.Entries)
		s.writeJSON(w, req, n, http.StatusOK, b.Bytes())
	default:
		w.Header().Set("Content-Type", typeJSON)
		size := -1
		if len(l.Entries) <= cache.LongList { // longer lists may lose cached encodings meanwhile
			size = len(jsonListHead(gvk, meta)) + len(jsonListTail)
			for i, e := range l.Entries {
				begin, rest := e.JSONItem(nil)
				size += len(begin) + len(rest)
				if i > 0 {
					size++
				}
			}
		}
		out, done := body(w, req, http.StatusOK, size)
		defer done()
		_ = streamJSON(out, gvk, meta, l.Entries)
	}
	return nil
}

type writer interface{ Write([]byte) (int, error) }

const jsonListTail = "]}\n"

func jsonListHead(gvk schema.GroupVersionKind, meta metav1.ListMeta) []byte {
	m, _ := json.Marshal(meta)
	return append(append([]byte(`{"kind":"`+gvk.Kind+`","apiVersion":"`+gvk.GroupVersion().String()+`","metadata":`),
		m...), `,"items":[`...)
}

// streamJSON writes a list item by item, in upstream's encoding.
func streamJSON(out writer, gvk schema.GroupVersionKind, meta metav1.ListMeta, entries []*cache.Entry) error {
	if _, err := out.Write(jsonListHead(gvk, meta)); err != nil {
		return err
	}
	var lead []byte
	scratch, done := cache.ScratchFor(len(entries))
	defer done()
	for i, e := range entries {
		begin, rest := e.JSONItem(scratch)
		lead = lead[:0]
		if i > 0 {
			lead = append(lead, ',')
		}
		lead = append(lead, begin...)
		if _, err := out.Write(lead); err != nil {
			return err
		}
		if _, err := out.Write(rest); err != nil {
			return err
		}
	}
	_, err := out.Write([]byte(jsonListTail))
	return err
}

// streamProto writes a list message: every Kubernetes list has its ListMeta as field 1 and its items as field 2.
func (s *Server) streamProto(w http.ResponseWriter, req *http.Request, gvk schema.GroupVersionKind,
	meta metav1.ListMeta, entries []*cache.Entry) error {
	m, err := meta.Marshal()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	size := 1 + uvarintSize(uint64(len(m))) + len(m)
	for _, e := range entries {
		n := e.ProtoSize()
		size += 1 + uvarintSize(uint64(n)) + n
	}
	head := envelope(nil, gvk, size)
	head = append(head, 0x0a)
	head = binary.AppendUvarint(head, uint64(len(m)))
	metaSize := 1 + uvarintSize(uint64(len(m)))
	w.Header().Set("Content-Type", typeProto)
	out, done := body(w, req, http.StatusOK, len(head)-metaSize+size+len(envelopeTail))
	defer done()
	if _, err := out.Write(append(head, m...)); err != nil {
		return nil
	}
	var frame [11]byte
	scratch, release := cache.ScratchFor(len(entries))
	defer release()
	for _, e := range entries {
		p := e.ProtoItem(scratch)
		f := binary.AppendUvarint(append(frame[:0], 0x12), uint64(len(p)))
		if _, err := out.Write(f); err != nil {
			return nil
		}
		if _, err := out.Write(p); err != nil {
			return nil
		}
	}
	_, _ = out.Write([]byte(envelopeTail))
	return nil
}
