package registry

import (
	"fmt"
	"hash/maphash"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
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

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// quotas implements the ResourceQuota plugin: it charges each write to the status of the namespace's quotas before
// the write. It remembers charges whose write the cache does not show yet, so that a recount includes them.
//
// Decision: upstream's evaluators and CheckRequest decide, but each request makes its own conditional update of the
// quota. Upstream batches the updates with goroutines and timers, which have a cost even in an idle process.
type quotas struct {
	r         *Registry
	row       *kind.Resource
	limited   []resourcequotaapi.LimitedResource
	evaluator func() quota.Registry

	// locks serialize the charges of a namespace, to avoid conflicts between them. Namespaces share locks by hash.
	locks [64]chan struct{}
	seed  maphash.Seed

	mu      sync.Mutex
	charges map[*charge]struct{} // one for each write in flight in a namespace with quotas
}

// charge is the usage that a write in flight adds to quotas.
type charge struct {
	q         *quotas
	row       *kind.Resource
	namespace string
	name      string
	was       int64 // the object's revision before the write; 0 for a create
	added     map[types.UID]corev1.ResourceList
}

// UseQuotas enables quota checks. A limited resource cannot be used in a namespace without a quota that covers it.
// Call UseQuotas before the first write.
func (r *Registry) UseQuotas(limited []resourcequotaapi.LimitedResource) error {
	q := &quotas{r: r, row: r.kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("ResourceQuota")), limited: limited,
		seed: maphash.MakeSeed(), charges: map[*charge]struct{}{}}
	if q.row == nil {
		return nil // the server has no quotas
	}
	for i := range q.locks {
		q.locks[i] = make(chan struct{}, 1)
	}
	if _, err := evaluators(r.kinds.Table(), nil); err != nil {
		return err
	}
	q.evaluator = kind.Derive(r.kinds, func(t *kind.Table) quota.Registry {
		all, _ := evaluators(t, nil) // the kinds do not affect the error
		return all
	})
	r.quotas = q
	return nil
}

// evaluators returns upstream's evaluators and an object count evaluator for each other kind. It leaves out
// resource claims, whose evaluator is created for each use (claimEvaluator).
func evaluators(t *kind.Table, list quota.ListerForResourceFunc) (quota.Registry, error) {
	all, err := core.NewEvaluators(list, nil, func(r schema.GroupVersionResource) bool {
		return r.Group != "resource.k8s.io"
	})
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

// charge checks an admitted write against the quotas of its namespace and charges it to them. The caller releases
// the result once the write has failed or is in the cache. The result is nil if nothing was charged.
func (c *call) charge(obj, old runtime.Object, name string, op admission.Operation, o runtime.Object,
	was int64) (*charge, error) {
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
	if c.row.GR() == resourcev1.Resource("resourceclaims") {
		evaluator = q.claimEvaluator(nil)
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
		// The cache may be behind and show more usage than there is.
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
	held := &charge{
		q:         q,
		row:       c.row,
		namespace: c.Namespace,
		name:      name,
		was:       was,
		added:     map[types.UID]corev1.ResourceList{},
	}
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

// write charges one quota. If the stored quota is newer than the one checked, it is checked again.
func (q *quotas) write(c *call, checked *corev1.ResourceQuota, a admission.Attributes,
	evaluator quota.Evaluator) error {
	one, err := q.r.begin(c.ctx,
		Target{Resource: q.row, Namespace: checked.Namespace, Name: checked.Name, Subresource: "status"}, "update", nil)
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

// lock returns the lock of a namespace's quotas. It is held by sending to it.
func (q *quotas) lock(namespace string) chan struct{} {
	return q.locks[maphash.String(q.seed, namespace)%uint64(len(q.locks))]
}

// release forgets a charge whose write has failed or is in the cache. The next recount, which the quota's changed
// status triggers, corrects the charge of a failed write.
func (h *charge) release() {
	if h == nil {
		return
	}
	h.q.mu.Lock()
	delete(h.q.charges, h)
	h.q.mu.Unlock()
}

// QuotaUsage returns the usage of the resources in spec.hard in the quota's namespace and scopes: stored objects
// and writes in flight. It reads the cache, which must not be older than the given quota.
func (r *Registry) QuotaUsage(of *corev1.ResourceQuota) (corev1.ResourceList, error) {
	if r.quotas == nil {
		return nil, nil
	}
	return r.quotas.usage(of)
}

func (q *quotas) usage(of *corev1.ResourceQuota) (corev1.ResourceList, error) {
	// Read charges before the lists: if a charge is released in between, the later lists show its object. Without
	// the lock, a charge that is registered but not yet written to the quota would be counted here and then charged
	// again.
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
	registry.Add(q.claimEvaluator(s.lister))
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
