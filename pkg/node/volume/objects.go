package volume

import (
	"context"
	"log/slog"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/client"
)

// Reference names a config map or a secret, or all objects of another kind that the node needs.
type Reference struct {
	Secret          bool
	Namespace, Name string
	// Bundles selects all ClusterTrustBundles; the other fields are empty.
	Bundles bool
	// RequestsOf selects all PodCertificateRequests of the node with this name; the other fields are empty.
	RequestsOf string
}

func (r Reference) list() (ctrl.ObjectList, []ctrl.ListOption) {
	switch {
	case r.RequestsOf != "":
		return &certificatesv1.PodCertificateRequestList{}, []ctrl.ListOption{
			ctrl.MatchingFields{"spec.nodeName": r.RequestsOf},
		}
	case r.Bundles:
		return &certificatesv1.ClusterTrustBundleList{}, nil
	case r.Secret:
		return &corev1.SecretList{}, []ctrl.ListOption{
			ctrl.InNamespace(r.Namespace), ctrl.MatchingFields{"metadata.name": r.Name},
		}
	}
	return &corev1.ConfigMapList{}, []ctrl.ListOption{
		ctrl.InNamespace(r.Namespace), ctrl.MatchingFields{"metadata.name": r.Name},
	}
}

// Objects reads the objects that the node's pods reference. It watches config maps and secrets by name: nodes are not
// authorized to watch others.
type Objects struct {
	client  client.Interface
	changed func(types.UID)
	log     *slog.Logger

	mu      sync.Mutex
	ctx     context.Context
	entries map[Reference]*entry
	byPod   map[types.UID]map[Reference]bool
	wg      sync.WaitGroup
}

type entry struct {
	pods   map[types.UID]bool
	seen   string // resourceVersion of the last read; "" if it was not found
	cancel context.CancelFunc
}

func newObjects(c client.Interface, changed func(types.UID), log *slog.Logger) *Objects {
	return &Objects{
		client:  c,
		changed: changed,
		log:     log,
		entries: map[Reference]*entry{},
		byPod:   map[types.UID]map[Reference]bool{},
	}
}

// Run runs the watches until ctx is done, and waits for them to end.
func (o *Objects) Run(ctx context.Context) {
	o.mu.Lock()
	o.ctx = ctx
	for r, e := range o.entries {
		o.watch(r, e)
	}
	o.mu.Unlock()
	<-ctx.Done()
	o.wg.Wait()
}

// Track sets the objects that a pod references and starts or stops their watches.
func (o *Objects) Track(uid types.UID, refs []Reference) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := make(map[Reference]bool, len(refs))
	for _, r := range refs {
		next[r] = true
		if o.byPod[uid][r] {
			continue
		}
		e := o.entries[r]
		if e == nil {
			e = &entry{pods: map[types.UID]bool{}}
			o.entries[r] = e
			o.watch(r, e)
		}
		e.pods[uid] = true
	}
	for r := range o.byPod[uid] {
		if next[r] {
			continue
		}
		e := o.entries[r]
		delete(e.pods, uid)
		if len(e.pods) == 0 {
			if e.cancel != nil {
				e.cancel()
			}
			delete(o.entries, r)
		}
	}
	if len(next) == 0 {
		delete(o.byPod, uid)
	} else {
		o.byPod[uid] = next
	}
}

// watch starts a watch, if Run was called. Called with the lock held.
func (o *Objects) watch(r Reference, e *entry) {
	if o.ctx == nil || o.ctx.Err() != nil || e.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(o.ctx)
	e.cancel = cancel
	o.wg.Go(func() {
		defer cancel()
		again := backoff.Backoff{First: time.Second, Most: 30 * time.Second}
		for ctx.Err() == nil {
			began := time.Now()
			if err := o.follow(ctx, r, e); err != nil && ctx.Err() == nil {
				o.log.Debug("watch of a referenced object ended", "object", r, "error", err)
			}
			again.ResetAfter(began)
			again.Wait(ctx)
		}
	})
}

func (o *Objects) follow(ctx context.Context, r Reference, e *entry) error {
	list, selection := r.list()
	w, err := o.client.Watch(ctx, list, selection...)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, open := <-w.ResultChan():
			if !open {
				return nil
			}
			if ev.Type != watch.Bookmark {
				o.event(r, e, ev)
			}
		}
	}
}

func (o *Objects) event(r Reference, e *entry, ev watch.Event) {
	m, err := meta.Accessor(ev.Object)
	if err != nil || r.Name != "" && m.GetName() != r.Name {
		return
	}
	o.mu.Lock()
	stale := ev.Type == watch.Deleted || m.GetResourceVersion() != e.seen
	var pods []types.UID
	if stale {
		request, one := ev.Object.(*certificatesv1.PodCertificateRequest)
		for uid := range e.pods {
			if !one || request.Spec.PodUID == uid {
				pods = append(pods, uid)
			}
		}
	}
	o.mu.Unlock()
	for _, uid := range pods {
		o.changed(uid)
	}
}

func (o *Objects) read(ctx context.Context, r Reference, into ctrl.Object) error {
	err := o.client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: r.Name}, into)
	o.mu.Lock()
	if e := o.entries[r]; e != nil {
		e.seen = ""
		if err == nil {
			e.seen = into.GetResourceVersion()
		}
	}
	o.mu.Unlock()
	return err
}

// ConfigMap reads a config map.
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	return cm, o.read(ctx, Reference{Namespace: namespace, Name: name}, cm)
}

// Secret reads a secret.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	return s, o.read(ctx, Reference{Secret: true, Namespace: namespace, Name: name}, s)
}

const (
	// maxWatched limits the watches per pod, each of which takes memory here and on the server: a pod may reference
	// 20,000 objects, which need not exist. unwatched is how often volumes of further objects are read.
	maxWatched = 256
	unwatched  = time.Minute
)

// References returns the objects that a pod's volumes and environment reference, first the volumes' objects.
func References(p *corev1.Pod) (out []Reference) {
	set := map[Reference]bool{}
	one := func(r Reference) {
		if !set[r] {
			set[r] = true
			out = append(out, r)
		}
	}
	add := func(secret bool, name string) {
		if name != "" {
			one(Reference{Secret: secret, Namespace: p.Namespace, Name: name})
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.ConfigMap != nil {
			add(false, v.ConfigMap.Name)
		}
		if v.Secret != nil {
			add(true, v.Secret.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add(false, s.ConfigMap.Name)
			}
			if s.Secret != nil {
				add(true, s.Secret.Name)
			}
			if s.ClusterTrustBundle != nil {
				one(Reference{Bundles: true})
			}
			if s.PodCertificate != nil {
				one(Reference{RequestsOf: p.Spec.NodeName})
			}
		}
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, e := range c.EnvFrom {
				if e.ConfigMapRef != nil {
					add(false, e.ConfigMapRef.Name)
				}
				if e.SecretRef != nil {
					add(true, e.SecretRef.Name)
				}
			}
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
					add(false, e.ValueFrom.ConfigMapKeyRef.Name)
				}
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					add(true, e.ValueFrom.SecretKeyRef.Name)
				}
			}
		}
	}
	return out
}
