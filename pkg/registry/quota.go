package registry

import (
	"fmt"
	"hash/maphash"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// quotas is the ResourceQuota plugin: it charges a write to the quotas of its namespace, in their status, before the
// write. What is charged and not yet in the cache is remembered, so that usage counted meanwhile includes it.
//
// Decision: upstream's evaluators and its CheckRequest decide, but each charge is a conditional write of its own, made by
// the request itself; upstream's evaluator batches them in goroutines and timers that an idle process does not need.
type quotas struct {
	r         *Registry
	row       *kind.Resource
	limited   []resourcequotaapi.LimitedResource
	evaluator func() quota.Registry

	// locks keep the charges of one namespace from losing races against each other; several namespaces may share one.
	locks [64]chan struct{}
	seed  maphash.Seed

	mu      sync.Mutex
	charges map[*charge]struct{} // one for each write under way in a namespace with quotas
}

// charge is what a write under way adds to quotas.
type charge struct {
	q         *quotas
	row       *kind.Resource
	namespace string
	name      string
	was       int64 // the object's revision before the write, 0 if it is created
	added     map[types.UID]corev1.ResourceList
}

// UseQuotas makes writes count against the quotas of their namespaces. What is limited cannot be used where no quota covers
// it. Call it before the first write.
func (r *Registry) UseQuotas(limited []resourcequotaapi.LimitedResource) error {
	q := &quotas{r: r, row: r.kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("ResourceQuota")), limited: limited,
		seed: maphash.MakeSeed(), charges: map[*charge]struct{}{}}
	if q.row == nil {
		return nil // a table without quotas has none to check
	}
	for i := range q.locks {
		q.locks[i] = make(chan struct{}, 1)
	}
	if _, err := evaluators(r.kinds.Table(), nil); err != nil {
		return err
	}
	q.evaluator = kind.Derive(r.kinds, func(t *kind.Table) quota.Registry {
		all, _ := evaluators(t, nil) // that it succeeds does not depend on the kinds
		return all
	})
	r.quotas = q
	return nil
}

// evaluators makes upstream's evaluators, and one that counts for each other kind. Dynamic resource allocation is not served.
func evaluators(t *kind.Table, list quota.ListerForResourceFunc) (quota.Registry, error) {
	all, err := core.NewEvaluators(list, nil, func(r schema.GroupVersionResource) bool { return r.Group != "resource.k8s.io" })
	if err != nil {
		return nil, err
	}
	registry := generic.NewRegistry(all)
	ignored := install.DefaultIgnoredResources()
	for _, row := range t.All() {
		if _, skip := ignored[row.GR()]; !skip && row.Namespaced && row.StoredAs == nil && registry.Get(row.GR()) == nil {
			registry.Add(generic.NewObjectCountEvaluator(row.GR(), generic.ListResourceUsingListerFunc(list, row.GVR()), ""))
		}
	}
	return registry, nil
}

// of lists the quotas of a namespace, as copies.
func (q *quotas) of(namespace string) []corev1.ResourceQuota {
	entries, _ := q.r.cache.List(q.row, cache.Query{Namespace: namespace})
	list := make([]corev1.ResourceQuota, 0, len(entries))
	for _, e := range entries {
		if o, ok := e.Object.(*corev1.ResourceQuota); ok {
			list = append(list, *o.DeepCopy())
		}
	}
	return list
}

// charge checks a write that admission allowed against the namespace's quotas, and charges it to them. The caller
// releases the result once the write failed or is in the cache. It is nil where nothing was charged.
func (c *call) charge(obj, old runtime.Object, name string, op admission.Operation, o runtime.Object, was int64) (*charge, error) {
	q := c.quotas
	if q == nil || c.Namespace == "" || c.row == c.namespaces {
		return nil, nil //nolint:nilnil // nothing is charged
	}
	evaluator := q.evaluator().Get(c.row.GR())
	if evaluator == nil {
		return nil, nil //nolint:nilnil // as above
	}
	list := q.of(c.Namespace)
	if len(list) == 0 && len(q.limited) == 0 {
		return nil, nil //nolint:nilnil // as above
	}
	a := c.attributes(obj, old, name, op, o)
	if !evaluator.Handles(a) {
		return nil, nil //nolint:nilnil // as above
	}
	lock := q.lock(c.Namespace)
	select {
	case lock <- struct{}{}:
		defer func() { <-lock }()
	case <-c.ctx.Done():
		return nil, apierrors.NewTimeoutError("the request ended while it waited for the quotas of its namespace", 1)
	}
	list = q.of(c.Namespace)
	next, err := resourcequota.CheckRequest(list, a, evaluator, q.limited)
	if err != nil && !c.dry {
		// The quotas may have more room than the cache shows.
		if _, err := c.sync(c.ctx); err != nil {
			return nil, err
		}
		list = q.of(c.Namespace)
		next, err = resourcequota.CheckRequest(list, a, evaluator, q.limited)
	}
	if err != nil {
		return nil, status(err, c.gr(), name)
	}
	if c.dry {
		return nil, nil //nolint:nilnil // as above
	}
	held := &charge{q: q, row: c.row, namespace: c.Namespace, name: name, was: was, added: map[types.UID]corev1.ResourceList{}}
	for i := range list {
		if !quota.Equals(list[i].Status.Used, next[i].Status.Used) {
			held.added[list[i].UID] = quota.Subtract(next[i].Status.Used, list[i].Status.Used)
		}
	}
	if len(held.added) == 0 {
		return nil, nil //nolint:nilnil // as above
	}
	q.mu.Lock()
	q.charges[held] = struct{}{}
	q.mu.Unlock()
	for i := range list {
		if held.added[list[i].UID] == nil {
			continue
		}
		if err := q.write(c, &list[i], a, evaluator); err != nil {
			held.release()
			return nil, err
		}
	}
	return held, nil
}

// write charges one quota. The stored quota may be newer than the one checked: then it is checked again.
func (q *quotas) write(c *call, checked *corev1.ResourceQuota, a admission.Attributes, evaluator quota.Evaluator) error {
	one, err := q.r.begin(c.ctx, Target{Resource: q.row, Namespace: checked.Namespace, Name: checked.Name, Subresource: "status"}, "update", nil)
	if err != nil {
		return err
	}
	w := &write{call: one, strategy: q.row.Status, internal: true, force: true, options: metav1.UpdateOptions{}}
	w.change = func(e *cache.Entry) (client.Object, error) {
		now := e.Object.DeepCopyObject().(*corev1.ResourceQuota)
		next, err := resourcequota.CheckRequest([]corev1.ResourceQuota{*now}, a, evaluator, nil)
		if err != nil {
			return nil, status(err, c.gr(), c.Name)
		}
		return &next[0], nil
	}
	_, err = w.run()
	if apierrors.IsNotFound(err) {
		return nil // the quota was deleted: it limits nothing
	}
	return err
}

// lock is held by whoever charges the quotas of a namespace.
func (q *quotas) lock(namespace string) chan struct{} {
	return q.locks[maphash.String(q.seed, namespace)%uint64(len(q.locks))]
}

// release forgets a charge whose write failed or is in the cache. What a failed write has charged too much is corrected when
// the quota's usage is next counted: soon, since its status changed.
func (h *charge) release() {
	if h == nil {
		return
	}
	h.q.mu.Lock()
	delete(h.q.charges, h)
	h.q.mu.Unlock()
}

// QuotaUsage counts what a quota's scope uses in its namespace, of the resources in its spec.hard: what is stored, and what
// was charged for writes under way. It is from the cache, which must show the quota given.
func (r *Registry) QuotaUsage(of *corev1.ResourceQuota) (corev1.ResourceList, error) {
	if r.quotas == nil {
		return nil, nil
	}
	return r.quotas.usage(of)
}

func (q *quotas) usage(of *corev1.ResourceQuota) (corev1.ResourceList, error) {
	// The charges come first: one that is released meanwhile is in the lists then, which are of later. Under the lock none is between its
	// entry in charges and its write to the quota, which would find itself counted already and charge twice.
	lock := q.lock(of.Namespace)
	lock <- struct{}{}
	q.mu.Lock()
	var underWay []*charge
	for h := range q.charges {
		if h.namespace == of.Namespace && h.added[of.UID] != nil {
			underWay = append(underWay, h)
		}
	}
	q.mu.Unlock()
	<-lock
	s := &snapshot{q: q, namespace: of.Namespace, lists: map[*kind.Resource][]*cache.Entry{}}
	registry, err := evaluators(q.r.kinds.Table(), s.lister)
	if err != nil {
		return nil, err
	}
	used, err := quota.CalculateUsage(of.Namespace, of.Spec.Scopes, of.Spec.Hard, registry, of.Spec.ScopeSelector)
	if err != nil {
		return nil, fmt.Errorf("usage of quota %s/%s: %w", of.Namespace, of.Name, err)
	}
	for _, h := range underWay {
		if !s.shows(h) {
			used = quota.Add(used, quota.Mask(h.added[of.UID], quota.ResourceNames(of.Spec.Hard)))
		}
	}
	return used, nil
}
