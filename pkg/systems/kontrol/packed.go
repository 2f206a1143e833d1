package kontrol

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"weak"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// packed is an object of Kontrol as the cache holds it: what tells it from others, and one object, shared by all that
// are alike, with the rest. There are many such objects, of which few are read at a time. It is immutable, but for the
// revision of a shallow copy.
type packed[T any, P packable[T], R content[T]] struct {
	client.Object // the rest; nobody changes it
	own           ownMeta
	rest          R
	made          atomic.Pointer[weak.Pointer[T]] // the whole object, for as long as anybody has it
}

type packable[T any] interface {
	*T
	client.Object
	metav1.ObjectMetaAccessor
}

// content is what tells the content of an object from that of others.
type content[T any] interface {
	// give sets it in an object that has its metadata.
	give(*T)
}

// pack packs an object. take moves what tells its content from others' out of a copy of it.
func pack[T any, P packable[T], R content[T]](s *shared, o P, take func(*T) R) client.Object {
	s.share(o)
	like := *o
	p := &packed[T, P, R]{own: takeMeta(P(&like)), rest: take(&like)}
	s.meta(&p.own)
	key, err := json.Marshal(&like)
	if err != nil {
		return o // which is merely larger
	}
	p.Object = s.like(string(key), P(&like))
	p.remember(o)
	return p
}

// unpack returns the object that was packed, and any other as it is. Nobody may change it.
func unpack(o client.Object) client.Object {
	if p, ok := o.(interface{ whole() client.Object }); ok {
		return p.whole()
	}
	return o
}

func (p *packed[T, P, R]) whole() client.Object {
	if made := p.made.Load(); made != nil {
		if o := made.Value(); o != nil {
			return P(o)
		}
	}
	o := *p.Object.(P)
	p.own.give(metaOf[T](P(&o)))
	p.rest.give(&o)
	p.remember(&o)
	return P(&o)
}

func (p *packed[T, P, R]) remember(o *T) {
	made := weak.Make(o)
	p.made.Store(&made)
}

// Shallow returns a copy whose version may be set.
func (p *packed[T, P, R]) Shallow() client.Object {
	return &packed[T, P, R]{Object: p.Object, own: p.own, rest: p.rest}
}

// MarshalJSON encodes the whole object.
func (p *packed[T, P, R]) MarshalJSON() ([]byte, error) { return json.Marshal(p.whole()) }

// DeepCopyObject returns a copy of the whole object.
func (p *packed[T, P, R]) DeepCopyObject() runtime.Object { return p.whole().DeepCopyObject() }

// GetObjectMeta returns the whole metadata.
func (p *packed[T, P, R]) GetObjectMeta() metav1.Object { return metaOf[T](p.whole().(P)) }

func (p *packed[T, P, R]) GetName() string                   { return p.own.name }
func (p *packed[T, P, R]) GetGeneration() int64              { return p.own.generation }
func (p *packed[T, P, R]) GetLabels() map[string]string      { return p.own.labels }
func (p *packed[T, P, R]) GetAnnotations() map[string]string { return p.own.annotations }

func (p *packed[T, P, R]) GetUID() types.UID { return p.GetObjectMeta().GetUID() }
func (p *packed[T, P, R]) GetCreationTimestamp() metav1.Time {
	return p.GetObjectMeta().GetCreationTimestamp()
}
func (p *packed[T, P, R]) GetManagedFields() []metav1.ManagedFieldsEntry {
	return p.GetObjectMeta().GetManagedFields()
}

func (p *packed[T, P, R]) GetResourceVersion() string { return p.own.version() }

// SetResourceVersion sets the version of a shallow copy that nobody else has. It must be a revision, or empty.
func (p *packed[T, P, R]) SetResourceVersion(version string) {
	p.own.revision, _ = strconv.ParseInt(version, 10, 64)
	p.made.Store(nil)
}

// GetObjectKind returns the kind. Setting it has no effect: the object that has it is shared.
func (p *packed[T, P, R]) GetObjectKind() schema.ObjectKind {
	kind := metav1.TypeMeta{}
	kind.SetGroupVersionKind(p.Object.GetObjectKind().GroupVersionKind())
	return &kind
}

// SetSelfLink does nothing: stored objects have none.
func (p *packed[T, P, R]) SetSelfLink(string) {}

func metaOf[T any, P packable[T]](o P) *metav1.ObjectMeta {
	m, ok := o.GetObjectMeta().(*metav1.ObjectMeta)
	if !ok {
		panic("a Kontrol object has other metadata than all others") // its type has it
	}
	return m
}

// ownMeta is the metadata that tells an object from others.
type ownMeta struct {
	name                          string
	uid                           uid
	revision, created, generation int64 // 0 if there is none
	labels, annotations           map[string]string
	managed                       []metav1.ManagedFieldsEntry // without the times in written
	written                       [2]int64
}

func takeMeta[T any, P packable[T]](o P) (own ownMeta) {
	m := metaOf[T](o)
	move(&own.name, &m.Name)
	move(&own.labels, &m.Labels)
	move(&own.annotations, &m.Annotations)
	move(&own.managed, &m.ManagedFields)
	move(&own.generation, &m.Generation)
	own.uid = takeUID(&m.UID)
	own.revision, _ = strconv.ParseInt(m.ResourceVersion, 10, 64)
	m.ResourceVersion = ""
	own.created = takeSeconds(&m.CreationTimestamp)
	cloned := false
	for i := range own.managed[:min(len(own.managed), len(own.written))] {
		at := own.managed[i].Time
		if at == nil {
			continue
		}
		left := *at
		if own.written[i] = takeSeconds(&left); own.written[i] == 0 {
			continue
		}
		if !cloned { // the object has the others
			own.managed, cloned = slices.Clone(own.managed), true
		}
		own.managed[i].Time = nil
	}
	return own
}

func (own *ownMeta) version() string {
	if own.revision == 0 {
		return ""
	}
	return strconv.FormatInt(own.revision, 10)
}

func (own *ownMeta) give(m *metav1.ObjectMeta) {
	m.Name, m.ResourceVersion, m.Generation, m.Labels, m.Annotations, m.ManagedFields = own.name, own.version(),
		own.generation, own.labels, own.annotations, own.managed
	giveUID(&m.UID, own.uid)
	giveSeconds(&m.CreationTimestamp, own.created)
	if own.written == [2]int64{} {
		return
	}
	m.ManagedFields = slices.Clone(own.managed)
	for i, seconds := range own.written {
		if seconds != 0 {
			m.ManagedFields[i].Time = new(metav1.Time)
			giveSeconds(m.ManagedFields[i].Time, seconds)
		}
	}
}

// resourceRest tells Resources apart.
type resourceRest struct {
	template               []byte
	revision, id, observed int64
	history                []kontrol.Revision
	conditions             []metav1.Condition
}

func takeResource(r *kontrol.Resource) (own resourceRest) {
	move(&own.template, &r.Spec.Template.Raw)
	if v := r.Spec.Revision; v != nil && *v != 0 {
		own.revision, r.Spec.Revision = *v, nil
	}
	move(&own.id, &r.Status.ID)
	move(&own.observed, &r.Status.ObservedGeneration)
	move(&own.history, &r.Status.History)
	move(&own.conditions, &r.Status.Conditions)
	return own
}

func (own resourceRest) give(r *kontrol.Resource) {
	r.Spec.Template.Raw = own.template
	if own.revision != 0 {
		r.Spec.Revision = &own.revision
	}
	r.Status.ID, r.Status.ObservedGeneration, r.Status.History, r.Status.Conditions = own.id, own.observed, own.history,
		own.conditions
}

// subjectRest tells apart what states are about. named: Resource and cluster are those in the state's name, alike: the
// object is called as the Resource.
type subjectRest struct {
	uid          uid
	id           int64
	named, alike bool
	target       string
}

func takeSubject(name string, of *kontrol.Subject) (own subjectRest) {
	own.uid = takeUID(&of.ResourceUID)
	move(&own.id, &of.ResourceID)
	if resource, cluster := kontrol.SplitStateName(name); resource == of.Resource && cluster == of.Cluster {
		if own.named = true; of.Target.Name == resource {
			own.alike, of.Target.Name = true, ""
		}
		of.Resource, of.Cluster = "", ""
	}
	move(&own.target, &of.Target.Name)
	return own
}

func (own *subjectRest) give(name string, of *kontrol.Subject) {
	giveUID(&of.ResourceUID, own.uid)
	of.ResourceID, of.Target.Name = own.id, own.target
	if own.named {
		of.Resource, of.Cluster = kontrol.SplitStateName(name)
	}
	if own.alike {
		of.Target.Name = of.Resource
	}
}

// appliedRest tells AppliedStates apart.
type appliedRest struct {
	subject                         subjectRest
	generation, revision, attempted int64
	object, fields                  []byte
	time, appliedAt                 int64
}

func takeApplied(a *kontrol.AppliedState, name string) (own appliedRest) {
	s := &a.State
	own.subject = takeSubject(name, &s.Subject)
	move(&own.generation, &s.Generation)
	move(&own.revision, &s.Revision)
	move(&own.attempted, &s.AttemptedGeneration)
	move(&own.object, &s.Object.Raw)
	move(&own.fields, &s.Fields.Raw)
	own.time, own.appliedAt = takeNanos(&s.Time), takeNanos(&s.AppliedAt)
	return own
}

func (own appliedRest) give(a *kontrol.AppliedState) {
	s := &a.State
	own.subject.give(a.Name, &s.Subject)
	s.Generation, s.Revision, s.AttemptedGeneration, s.Object.Raw, s.Fields.Raw = own.generation, own.revision,
		own.attempted, own.object, own.fields
	giveNanos(&s.Time, own.time)
	giveNanos(&s.AppliedAt, own.appliedAt)
}

// currentRest tells CurrentStates apart.
type currentRest struct {
	subject              subjectRest
	generation, revision int64
	uid                  uid
	version              string
	object               []byte
	time                 int64
}

func takeCurrent(c *kontrol.CurrentState, name string) (own currentRest) {
	s := &c.State
	own.subject = takeSubject(name, &s.Subject)
	move(&own.generation, &s.Generation)
	move(&own.revision, &s.Revision)
	own.uid = takeUID(&s.UID)
	move(&own.version, &s.ResourceVersion)
	move(&own.object, &s.Object.Raw)
	own.time = takeNanos(&s.Time)
	return own
}

func (own currentRest) give(c *kontrol.CurrentState) {
	s := &c.State
	own.subject.give(c.Name, &s.Subject)
	s.Generation, s.Revision, s.ResourceVersion, s.Object.Raw = own.generation, own.revision, own.version, own.object
	giveUID(&s.UID, own.uid)
	giveNanos(&s.Time, own.time)
}

// move moves a value, and leaves none.
func move[T any](to, from *T) {
	var none T
	*to, *from = *from, none
}

// uid is a UID in its usual form; none if it is all zeros.
type uid [16]byte

// takeUID leaves a UID that has another form where it is.
func takeUID[T ~string](from *T) uid {
	id, err := uuid.Parse(string(*from))
	if err != nil || id == uuid.Nil || id.String() != string(*from) {
		return uid{}
	}
	*from = ""
	return uid(id)
}

func giveUID[T ~string](to *T, id uid) {
	if id != (uid{}) {
		*to = T(uuid.UUID(id).String())
	}
}

// takeSeconds leaves a time that is no whole number of seconds where it is. 0 is none.
func takeSeconds(from *metav1.Time) int64 {
	if from.IsZero() || from.Nanosecond() != 0 {
		return 0
	}
	seconds := from.Unix()
	if seconds != 0 {
		*from = metav1.Time{}
	}
	return seconds
}

func giveSeconds(to *metav1.Time, seconds int64) {
	if seconds != 0 {
		*to = metav1.Unix(seconds, 0)
	}
}

// takeNanos leaves a time for which there is no number of nanoseconds where it is. 0 is none.
func takeNanos(from **metav1.MicroTime) int64 {
	const most = math.MaxInt64 / int64(time.Second)
	if at := *from; at == nil || at.Unix() <= -most || at.Unix() >= most {
		return 0
	}
	nanos := (*from).UnixNano()
	if nanos != 0 {
		*from = nil
	}
	return nanos
}

func giveNanos(to **metav1.MicroTime, nanos int64) {
	if nanos != 0 {
		at := metav1.NewMicroTime(time.Unix(0, nanos))
		*to = &at
	}
}

// pack sets the form in which the cache holds objects of a row of Kontrol's.
func (s *shared) pack(r *kind.Resource) *kind.Resource {
	r.Unpack = unpack
	r.Pack = func(o client.Object) client.Object {
		switch o := o.(type) {
		case *kontrol.Resource:
			return pack(s, o, takeResource)
		case *kontrol.AppliedState:
			return pack(s, o, func(a *kontrol.AppliedState) appliedRest { return takeApplied(a, o.Name) })
		case *kontrol.CurrentState:
			return pack(s, o, func(c *kontrol.CurrentState) currentRest { return takeCurrent(c, o.Name) })
		}
		return o
	}
	internal, set := r.Internal, r.Fields
	r.Internal = func(o client.Object) (runtime.Object, error) { return internal(unpack(o)) }
	r.Fields = func(o client.Object) fields.Set { return set(unpack(o)) }
	for i := range r.Indexes {
		value := r.Indexes[i].Value
		r.Indexes[i].Value = func(o client.Object) string { return value(unpack(o)) }
	}
	return r
}
