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

// claimEvaluator returns upstream's evaluator of resource claims: how many there are, and how many devices they ask
// for, by class and by the extended resource that a class serves (KEP-5004). What the pod of a claim is charged for its
// extended resources, the claim is not. The classes are those of now: it is made for one use. list is nil if it is not
// used for counting.
func (q *quotas) claimEvaluator(list quota.ListerForResourceFunc) quota.Evaluator {
	classes := extendedresourcecache.NewExtendedResourceCache(klog.Logger{})
	for _, e := range q.list("deviceclasses", "") {
		classes.OnAdd(e.Object, true)
	}
	firsts := map[string]map[types.UID]*resourcev1.ResourceClaim{} // of each namespace, which is read once
	owned := func(namespace string, pod types.UID) ([]*resourcev1.ResourceClaim, error) {
		if firsts[namespace] == nil {
			firsts[namespace] = q.firstClaims(namespace)
		}
		if c := firsts[namespace][pod]; c != nil {
			return []*resourcev1.ResourceClaim{c}, nil // with which the evaluator compares any other
		}
		return nil, nil
	}
	return core.NewResourceClaimEvaluator(list, classes, podLister{q: q}, owned)
}

// firstClaims returns the claims for extended resources of a namespace's pods. Of those that say to be of the same pod,
// only the first one is.
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

// podLister gets pods, for upstream's evaluator. It lists none.
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
