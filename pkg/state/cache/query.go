package cache

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Query narrows a list or a watch. Nil selectors select everything.
type Query struct {
	Namespace string
	Labels    labels.Selector
	Fields    fields.Selector
}

// matcher is a compiled Query: the common fields are compared directly, the rest through the row's Fields.
type matcher struct {
	row    *kind.Resource
	prefix string // of matching entries' tails
	name   string
	index  *kind.Index // the first indexed field with an equality requirement
	value  string      // the required value
	labels labels.Selector
	fields fields.Selector
	none   bool // nothing can match
}

func newMatcher(r *kind.Resource, q Query) matcher {
	m := matcher{row: r}
	namespace := q.Namespace
	if q.Labels != nil && !q.Labels.Empty() {
		m.labels = q.Labels
	}
	if q.Fields != nil && !q.Fields.Empty() {
		var rest bool
		for _, req := range q.Fields.Requirements() {
			exact := req.Operator == selection.Equals || req.Operator == selection.DoubleEquals
			switch {
			case exact && req.Field == "metadata.name" && (m.name == "" || m.name == req.Value) && req.Value != "":
				m.name = req.Value
			case exact && r.Namespaced && req.Field == "metadata.namespace" && req.Value != "":
				m.none = m.none || namespace != "" && namespace != req.Value
				namespace = req.Value
			case exact && m.index == nil && r.StoredAs == nil && r.Index(req.Field) != nil:
				m.index, m.value = r.Index(req.Field), req.Value
			default:
				rest = true
			}
		}
		if rest {
			m.fields = q.Fields
		}
	}
	if r.Namespaced && namespace != "" {
		m.prefix = namespace + "/"
	}
	return m
}

// key is the tail of the only object that can match, if the query names one.
func (m *matcher) key() (tail string, ok bool) {
	return m.prefix + m.name, m.name != "" && (m.prefix != "" || !m.row.Namespaced)
}

func (m *matcher) match(e *Entry) bool {
	if m.none {
		return false
	}
	if m.prefix != "" || m.name != "" {
		tail := e.tail()
		if !strings.HasPrefix(tail, m.prefix) {
			return false
		}
		if m.name != "" && tail[strings.LastIndexByte(tail, '/')+1:] != m.name {
			return false
		}
	}
	if m.index != nil && m.index.Value(e.Object) != m.value {
		return false
	}
	if m.labels != nil && !m.labels.Matches(labels.Set(e.Object.GetLabels())) {
		return false
	}
	return m.fields == nil || m.fields.Matches(fieldSet(m.row, e))
}

// fieldSet returns the selectable fields of an entry in the version of r.
func fieldSet(r *kind.Resource, e *Entry) fields.Set {
	in, err := e.In(r)
	if err != nil {
		return nil
	}
	return r.Fields(in.Object)
}

// Get returns the entry of one object, or nil.
func (c *Cache) Get(r *kind.Resource, namespace, name string) *Entry {
	t := c.kindCache(r)
	if t == nil {
		return nil
	}
	if namespace != "" && t.row.Namespaced {
		name = namespace + "/" + name
	}
	return t.get(name)
}

// List returns the matching entries in key order, and the revision of the result. It uses an index where the query
// allows: the namespace, or an indexed field.
func (c *Cache) List(r *kind.Resource, q Query) (entries []*Entry, rev int64) {
	t := c.kindCache(r)
	if t == nil {
		return nil, c.rev.Load()
	}
	// Read the revision first: the snapshot, taken later, includes at least all changes up to it.
	rev = c.rev.Load()
	s := t.snapshot()
	m := newMatcher(r, q)
	return s.list(&m), max(rev, s.rev)
}

func (s *snapshot) list(m *matcher) (entries []*Entry) {
	if m.none {
		return nil
	}
	if tail, ok := m.key(); ok {
		if e, found := s.objects.Get(tail); found && m.match(e) {
			entries = append(entries, e)
		}
		return entries
	}
	if m.index != nil && s.indexes[m.index.Field] != nil {
		s.indexed(m.index.Field, m.value, func(e *Entry) {
			if m.match(e) {
				entries = append(entries, e)
			}
		})
		return entries
	}
	all := m.labels == nil && m.fields == nil && m.name == ""
	if all && m.prefix == "" {
		entries = make([]*Entry, 0, s.objects.Len())
	}
	s.each(m.prefix, func(e *Entry) bool {
		if all || m.match(e) {
			entries = append(entries, e)
		}
		return true
	})
	return entries
}
