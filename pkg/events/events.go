// Package events records events for people: what happened to an object, and why.
//
// It may import client. Its invariant: recording never blocks and never fails the
// caller's work; an event that repeats is counted, not written again.
package events

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

const (
	// backlog is how many events wait to be written; those beyond are dropped.
	backlog = 1000
	// remembered is how many written events are known by name, to count repeats; beyond, an
	// arbitrary one is forgotten, and written anew if it comes again.
	remembered = 1000
	// maxMessage is upstream's bound on a message, in bytes.
	maxMessage = 1024
)

// Recorder writes events as one component. Safe for concurrent use; a nil Recorder records nothing.
type Recorder struct {
	client    cc.Interface
	component string
	host      string
	queue     chan happening

	known map[happening]known // Run's alone
}

// happening is what makes two events the same.
type happening struct {
	about           corev1.ObjectReference
	kind            string // Normal or Warning
	reason, message string
	at              time.Time // zero in a map key
}

type known struct {
	name  string
	count int32
}

// New makes a recorder for a component ("replicaset-controller") on a host (empty if it is none's).
func New(c cc.Interface, component, host string) *Recorder {
	return &Recorder{client: c, component: component, host: host, queue: make(chan happening, backlog), known: map[happening]known{}}
}

// Event records what happened to obj: kind is corev1.EventTypeNormal or EventTypeWarning, reason is
// one CamelCase word, the message is for people.
func (r *Recorder) Event(obj client.Object, kind, reason, format string, args ...any) {
	if r == nil {
		return
	}
	gvk, err := apiutil.GVKForObject(obj, r.client.Scheme())
	if err != nil {
		return
	}
	r.About(corev1.ObjectReference{
		APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind,
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}, kind, reason, format, args...)
}

// About is Event for a reference.
func (r *Recorder) About(ref corev1.ObjectReference, kind, reason, format string, args ...any) {
	if r == nil {
		return
	}
	message := format
	if len(args) > 0 {
		message = fmt.Sprintf(format, args...)
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	select {
	case r.queue <- happening{about: ref, kind: kind, reason: reason, message: message, at: time.Now()}:
	default:
	}
}

// Run writes what is recorded until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-r.queue:
			r.write(ctx, h)
		}
	}
}

func (r *Recorder) write(ctx context.Context, h happening) {
	at := metav1.NewTime(h.at)
	key := h
	key.at, key.about.ResourceVersion = time.Time{}, ""
	namespace := h.about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	was, seen := r.known[key]
	if seen {
		was.count++
		patch, _ := json.Marshal(map[string]any{"count": was.count, "lastTimestamp": at})
		old := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: was.name}}
		err := r.client.Patch(ctx, old, client.RawPatch(types.MergePatchType, patch))
		if err == nil {
			r.remember(key, was)
			return
		}
		if !apierrors.IsNotFound(err) {
			return
		}
	}
	name := h.about.Name + "." + strconv.FormatInt(h.at.UnixNano(), 16)
	if len(name) > 253 {
		name = name[len(name)-253:]
	}
	err := r.client.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
		InvolvedObject: h.about, Reason: h.reason, Message: h.message, Type: h.kind, Count: 1,
		FirstTimestamp: at, LastTimestamp: at,
		Source:              corev1.EventSource{Component: r.component, Host: r.host},
		ReportingController: r.component, ReportingInstance: r.host,
	})
	if err == nil {
		r.remember(key, known{name: name, count: 1})
	}
}

func (r *Recorder) remember(key happening, k known) {
	if _, ok := r.known[key]; !ok && len(r.known) >= remembered {
		for other := range r.known {
			delete(r.known, other)
			break
		}
	}
	r.known[key] = k
}
