package deployment

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// The annotations that upstream and kubectl use for a deployment's history, which is stored on its sets.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredAnnotation         = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation             = "deployment.kubernetes.io/max-replicas"
	rollbackAnnotation        = "deprecated.deployment.rollback.to"
	maxHistoryBytes           = 2000
)

// Observed is the observed state.
type Observed struct {
	Deployment *appsv1.Deployment
	// Owned are the sets that the deployment controls. Orphans are the sets in its namespace without a controller.
	Owned, Orphans []*appsv1.ReplicaSet
	// Pods are the pods of the owned sets, by the set's UID. Only the Recreate strategy needs them.
	Pods map[string][]*corev1.Pod
}

// Actions is what to do, in the order of the fields.
type Actions struct {
	engine.Claimed[*appsv1.ReplicaSet]
	// Create is the new set, nil if it exists or must not be created yet.
	Create *appsv1.ReplicaSet
	// Update are the changed sets in their desired state. Scaled are the changes of size, for events.
	Update []*appsv1.ReplicaSet
	Scaled []Scaled
	Delete []*appsv1.ReplicaSet
	// Annotations are the deployment's new annotations, nil if unchanged.
	Annotations map[string]string
	Status      appsv1.DeploymentStatus
	// Again is the time until the progress deadline, 0 if there is none.
	Again time.Duration
}

// Scaled is a change of a set's size.
type Scaled struct {
	Set      string
	From, To int32
}

// Plan computes one step of the rollout. It does not change o.
func Plan(o Observed, now time.Time) (Actions, error) {
	selector, err := metav1.LabelSelectorAsSelector(o.Deployment.Spec.Selector)
	if err != nil {
		return Actions{}, err
	}
	p := &plan{d: o.Deployment, now: now, was: map[string]*appsv1.ReplicaSet{}, annotations: o.Deployment.Annotations}
	p.status = *o.Deployment.Status.DeepCopy()
	if selector.Empty() {
		p.a.Status = p.status
		p.a.Status.ObservedGeneration = max(p.status.ObservedGeneration, p.d.Generation)
		return p.a, nil
	}
	p.claim(o, selector)
	newest := p.findNew()
	for _, rs := range p.all {
		if rs != newest {
			p.old = append(p.old, rs)
		}
	}
	p.newest = newest
	if p.d.DeletionTimestamp == nil {
		p.pausedConditions()
		switch {
		case p.d.Spec.Paused, p.isScaling():
			p.revisions(false)
			p.scaleAll()
			if p.d.Spec.Paused && p.d.Annotations[rollbackAnnotation] == "" {
				p.cleanup()
			}
		case p.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
			p.recreate(o.Pods)
		default:
			p.roll()
		}
	}
	p.finish()
	return p.a, nil
}

// plan is the state of one call. Its sets are copies, which the methods change.
type plan struct {
	d           *appsv1.Deployment
	now         time.Time
	was         map[string]*appsv1.ReplicaSet // by name, as observed
	all, old    []*appsv1.ReplicaSet          // oldest first
	newest      *appsv1.ReplicaSet            // the set with the deployment's template, or nil
	created     bool                          // newest must be created
	annotations map[string]string             // the deployment's annotations
	status      appsv1.DeploymentStatus       // its conditions change during the call
	a           Actions
}

func (p *plan) claim(o Observed, selector labels.Selector) {
	p.a.Claimed = engine.Claim(p.d, o.Owned, o.Orphans, selector, nil)
	for _, rs := range p.a.All {
		p.was[rs.Name] = rs
		p.all = append(p.all, rs.DeepCopy())
	}
	slices.SortFunc(p.all, byCreation)
}

func byCreation(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
