package registry

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	quota "k8s.io/apiserver/pkg/quota/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// claimEvaluator returns upstream's evaluator of resource claims: their number, and the number of devices they
// request, by class and by the class's extended resource (KEP-5004). A claim is not charged for extended resources
// that its pod is charged for. The evaluator keeps the current classes, so create one for each use. list may be nil
// if the evaluator does not count.
func (q *quotas) claimEvaluator(list quota.ListerForResourceFunc) quota.Evaluator {
	classes := extendedresourcecache.NewExtendedResourceCache(klog.Logger{})
	for _, e := range q.list("deviceclasses", "") {
		classes.OnAdd(e.Object, true)
	}
	firsts := map[string]map[types.UID]*resourcev1.ResourceClaim{} // by namespace, each read once
	owned := func(namespace string, pod types.UID) ([]*resourcev1.ResourceClaim, error) {
		if firsts[namespace] == nil {
			firsts[namespace] = q.firstClaims(namespace)
		}
		if c := firsts[namespace][pod]; c != nil {
			return []*resourcev1.ResourceClaim{c}, nil // the evaluator looks for an older claim of the pod
		}
		return nil, nil
	}
	return core.NewResourceClaimEvaluator(list, classes, podLister{q: q}, owned)
}

// firstClaims returns the claims for extended resources in a namespace, by the UID of their pod. If several claims
// name the same pod, only the oldest counts.
func (q *quotas) firstClaims(namespace string) map[types.UID]*resourcev1.ResourceClaim {
	first := map[types.UID]*resourcev1.ResourceClaim{}
	for _, e := range q.list("resourceclaims", namespace) {
		c, ok := e.Object.(*resourcev1.ResourceClaim)
		if !ok || c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
			continue
		}
		ref := metav1.GetControllerOfNoCopy(c)
		if ref == nil || ref.Kind != "Pod" {
			continue
		}
		if was := first[ref.UID]; was == nil ||
			cmp.Or(c.CreationTimestamp.Compare(was.CreationTimestamp.Time), strings.Compare(c.Name, was.Name)) < 0 {
			first[ref.UID] = c
		}
	}
	return first
}

// list returns the objects of a resource of resource.k8s.io; none if it is not served.
func (q *quotas) list(resource, namespace string) []*cache.Entry {
	row := q.r.kinds.Table().ByGVR(resourcev1.SchemeGroupVersion.WithResource(resource))
	if row == nil {
		return nil
	}
	entries, _ := q.r.cache.List(row, cache.Query{Namespace: namespace})
	return entries
}

// podLister gets pods for upstream's evaluator. Its List returns nothing.
type podLister struct {
	corelisters.PodNamespaceListerExpansion
	corelisters.PodListerExpansion
	q         *quotas
	namespace string
}

var _ corelisters.PodLister = podLister{}

func (l podLister) Pods(namespace string) corelisters.PodNamespaceLister {
	l.namespace = namespace
	return l
}

func (l podLister) List(labels.Selector) ([]*corev1.Pod, error) { return nil, nil }

func (l podLister) Get(name string) (*corev1.Pod, error) {
	if row := l.q.r.kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("Pod")); row != nil {
		if e := l.q.r.cache.Get(row, l.namespace, name); e != nil {
			if p, ok := e.Object.(*corev1.Pod); ok {
				return p, nil
			}
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
}
