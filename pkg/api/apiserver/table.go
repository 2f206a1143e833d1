package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

var errNoAnswer = errors.New("the registry returned no object")

func notAcceptable(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: text,
	}}
}

func tableOptions(req *http.Request) (*metav1.TableOptions, error) {
	var o metav1.TableOptions
	values := req.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_TableOptions(&values, &o, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if errs := validation.ValidateTableOptions(&o); len(errs) > 0 {
		return nil, apierrors.NewBadRequest("Unable to convert to Table as requested: " + errs.ToAggregate().Error())
	}
	return &o, nil
}

// rows prints an object as table rows. Each row includes the object, its metadata or nothing, as o says.
func rows(ctx context.Context, t registry.Target, obj runtime.Object, e *cache.Entry, o *metav1.TableOptions,
	gv schema.GroupVersion) (*metav1.Table, error) {
	shown := obj
	if c, ok := obj.(client.Object); ok && t.Resource.Internal != nil && t.Resource.Subresource(t.Subresource) == nil {
		in, err := t.Resource.Internal(c)
		if err != nil {
			return nil, err
		}
		shown = in
	}
	printer := t.Resource.Table
	if sub := t.Resource.Subresource(t.Subresource); sub != nil && sub.GroupVersionKind != t.Resource.GroupVersionKind {
		if printer = sub.Table; printer == nil {
			printer = rest.NewDefaultTableConvertor(t.Resource.GR())
		}
	}
	table, err := printer.ConvertToTable(ctx, shown, o)
	if err != nil {
		return nil, err
	}
	for i := range table.Rows {
		raw := []byte(nil)
		switch o.IncludeObject {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			if e != nil {
				raw = e.JSON()
			} else if raw, err = json.Marshal(obj); err != nil {
				return nil, err
			}
		default:
			if raw, err = partialJSON(obj, e, gv); err != nil {
				return nil, err
			}
		}
		table.Rows[i].Object = runtime.RawExtension{Raw: raw}
	}
	table.TypeMeta = metav1.TypeMeta{Kind: "Table", APIVersion: gv.String()}
	return table, nil
}

// partialJSON encodes the object's metadata. It uses the entry's cached encoding if there is one.
func partialJSON(obj runtime.Object, e *cache.Entry, gv schema.GroupVersion) ([]byte, error) {
	if e != nil {
		if raw := e.Metadata(); raw != nil {
			const head, version = `{"kind":"PartialObjectMetadata","apiVersion":"`, `","metadata":`
			text := gv.String()
			b := make([]byte, 0, len(head)+len(text)+len(version)+len(raw)+1)
			b = append(append(append(append(b, head...), text...), version...), raw...)
			return append(b, '}'), nil
		}
	}
	p, err := partial(obj, gv)
	if err != nil {
		return nil, err
	}
	return json.Marshal(p)
}

func partial(obj runtime.Object, gv schema.GroupVersion) (*metav1.PartialObjectMetadata, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, notAcceptable("the requested object has no metadata")
	}
	p := meta.AsPartialObjectMetadata(m)
	p.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: gv.String()}
	return p, nil
}

func (s *Server) writeConverted(w http.ResponseWriter, req *http.Request, n answer, code int, t registry.Target,
	obj runtime.Object, e *cache.Entry) error {
	if status, ok := obj.(*metav1.Status); ok {
		s.writeObject(w, req, n, code, status)
		return nil
	}
	switch n.as.Kind {
	case "Table":
		o, err := tableOptions(req)
		if err != nil {
			return err
		}
		table, err := rows(req.Context(), t, obj, e, o, n.as.GroupVersion())
		if err != nil {
			return err
		}
		if o.NoHeaders {
			table.ColumnDefinitions = nil
		}
		s.writeObject(w, req, n, code, table)
	case "PartialObjectMetadata":
		p, err := partial(obj, n.as.GroupVersion())
		if err != nil {
			return err
		}
		s.writeObject(w, req, n, code, p)
	default:
		return notAcceptable("you requested PartialObjectMetadataList, but the requested object is not a list")
	}
	return nil
}

// writeTable streams a list as a Table, row by row.
func (s *Server) writeTable(w http.ResponseWriter, req *http.Request, n answer, t registry.Target, lm metav1.ListMeta,
	entries []*cache.Entry) error {
	o, err := tableOptions(req)
	if err != nil {
		return err
	}
	// Printers return the columns for any object of the kind, so an empty one will do.
	columns, err := rows(req.Context(), t, t.Resource.New(), nil, &metav1.TableOptions{IncludeObject: metav1.IncludeNone},
		n.as.GroupVersion())
	if err != nil {
		return err
	}
	var b bytes.Buffer
	head := struct {
		Kind              string                         `json:"kind"`
		APIVersion        string                         `json:"apiVersion"`
		Metadata          metav1.ListMeta                `json:"metadata"`
		ColumnDefinitions []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}{"Table", n.as.GroupVersion().String(), lm, columns.ColumnDefinitions}
	if o.NoHeaders {
		head.ColumnDefinitions = nil
	}
	h, err := json.Marshal(head)
	if err != nil {
		return err
	}
	whole := n.media == mediaYAML || n.pretty
	var out writer = &b
	done := func() {}
	if !whole {
		w.Header().Set("Content-Type", typeJSON)
		out, done = body(w, req, http.StatusOK, -1)
	}
	defer func() { done() }()
	_, _ = out.Write(h[:len(h)-1])
	_, _ = out.Write([]byte(`,"rows":[`))
	first := true
	each := *o
	each.NoHeaders = true // the head has the column definitions
	for _, e := range entries {
		table, err := rows(req.Context(), t, e.Object, e, &each, n.as.GroupVersion())
		if err != nil {
			s.log.Warn("could not print object", "key", e.Key, "error", err)
			continue
		}
		for i := range table.Rows {
			if !first {
				_, _ = out.Write([]byte{','})
			}
			first = false
			if err := writeRow(out, &table.Rows[i]); err != nil {
				return nil
			}
		}
	}
	_, _ = out.Write([]byte(jsonListTail))
	if whole {
		s.writeJSON(w, req, n, http.StatusOK, b.Bytes())
	}
	return nil
}

func writeRow(out writer, row *metav1.TableRow) error {
	cells, err := json.Marshal(struct {
		Cells      []any                      `json:"cells"`
		Conditions []metav1.TableRowCondition `json:"conditions,omitempty"`
	}{row.Cells, row.Conditions})
	if err != nil {
		return err
	}
	if row.Object.Raw == nil {
		cells = append(cells[:len(cells)-1], `,"object":null}`...)
		_, err = out.Write(cells)
		return err
	}
	if _, err = out.Write(append(cells[:len(cells)-1], `,"object":`...)); err != nil {
		return err
	}
	if _, err = out.Write(row.Object.Raw); err != nil {
		return err
	}
	_, err = out.Write([]byte{'}'})
	return err
}

func (s *Server) writePartials(w http.ResponseWriter, req *http.Request, n answer, lm metav1.ListMeta,
	entries []*cache.Entry) error {
	l := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: n.as.GroupVersion().String()},
		ListMeta: lm, Items: make([]metav1.PartialObjectMetadata, 0, len(entries)),
	}
	for _, e := range entries {
		p, err := partial(e.Object, n.as.GroupVersion())
		if err != nil {
			return err
		}
		l.Items = append(l.Items, *p)
	}
	s.writeObject(w, req, n, http.StatusOK, l)
	return nil
}
