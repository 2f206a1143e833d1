package deployment

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine/podstate"
)

// The annotations in which a deployment stores its history on its sets, as upstream and kubectl expect.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredAnnotation         = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation             = "deployment.kubernetes.io/max-replicas"
	rollbackAnnotation        = "deprecated.deployment.rollback.to"
	maxHistoryBytes           = 2000
)

// Observed is what there is.
type Observed struct {
	Deployment *appsv1.Deployment
	// Owned are the sets whose controller it is, Orphans those of its namespace without any.
	Owned, Orphans []*appsv1.ReplicaSet
	// Pods are those of the owned sets, by the set's UID; only needed for the Recreate strategy.
	Pods map[string][]*corev1.Pod
}

// Actions is what to do, in this order.
type Actions struct {
	Adopt, Release []*appsv1.ReplicaSet
	// Create is the new set, nil if it exists or must not be created yet.
	Create *appsv1.ReplicaSet
	// Update holds each changed set as it should be; Scaled says from where, for the event.
	Update []*appsv1.ReplicaSet
	Scaled []Scaled
	Delete []*appsv1.ReplicaSet
	// Annotations of the deployment, nil if unchanged.
	Annotations map[string]string
	Status      appsv1.DeploymentStatus
	// Again is the time until the progress deadline; 0: none.
	Again time.Duration
}

// Scaled is one change of a set's size.
type Scaled struct {
	Set      string
	From, To int32
}

// Plan decides one step of the roll-out. It does not change o.
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

// plan is the work of one call. Sets in it are copies, changed as the plan goes on.
type plan struct {
	d           *appsv1.Deployment
	now         time.Time
	was         map[string]*appsv1.ReplicaSet // by name, as observed
	all, old    []*appsv1.ReplicaSet          // oldest first
	newest      *appsv1.ReplicaSet            // the one with the deployment's template, or nil
	created     bool                          // newest is to be created
	annotations map[string]string             // the deployment's
	status      appsv1.DeploymentStatus       // its conditions change as the plan goes on
	a           Actions
}

func (p *plan) claim(o Observed, selector labels.Selector) {
	deleting := p.d.DeletionTimestamp != nil
	take := func(rs *appsv1.ReplicaSet) {
		p.was[rs.Name] = rs
		p.all = append(p.all, rs.DeepCopy())
	}
	for _, rs := range o.Owned {
		if selector.Matches(labels.Set(rs.Labels)) {
			take(rs)
		} else if !deleting && rs.DeletionTimestamp == nil {
			p.a.Release = append(p.a.Release, rs)
		}
	}
	if !deleting {
		for _, rs := range o.Orphans {
			if rs.DeletionTimestamp == nil && selector.Matches(labels.Set(rs.Labels)) {
				p.a.Adopt = append(p.a.Adopt, rs)
				take(rs)
			}
		}
	}
	slices.SortFunc(p.all, byCreation)
}

func byCreation(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func (p *plan) findNew() *appsv1.ReplicaSet {
	for _, rs := range p.all {
		if sameTemplate(&rs.Spec.Template, &p.d.Spec.Template) {
			return rs
		}
	}
	return nil
}

// sameTemplate compares two templates but for the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	strip := func(t *corev1.PodTemplateSpec) corev1.PodTemplateSpec {
		out := *t
		out.Labels = maps.Clone(t.Labels)
		delete(out.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		return out
	}
	return equality.Semantic.DeepEqual(strip(a), strip(b))
}

func revision(o metav1.Object) int64 {
	n, _ := strconv.ParseInt(o.GetAnnotations()[revisionAnnotation], 10, 64)
	return n
}

// revisions gives the new set its revision and annotations, and makes it if it is missing and create is set.
func (p *plan) revisions(create bool) {
	var last int64
	for _, rs := range p.old {
		last = max(last, revision(rs))
	}
	next := strconv.FormatInt(last+1, 10)
	if p.newest != nil {
		p.annotate(p.newest, next)
		p.newest.Spec.MinReadySeconds = p.d.Spec.MinReadySeconds
		if p.hasDeadline() && condition(p.status, appsv1.DeploymentProgressing) == nil {
			p.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "FoundNewReplicaSet", fmt.Sprintf("Found new replica set %q", p.newest.Name))
		}
		p.setRevision(p.newest.Annotations[revisionAnnotation])
		return
	}
	if !create {
		return
	}
	hash := podstate.TemplateHash(&p.d.Spec.Template, p.d.Status.CollisionCount)
	template := *p.d.Spec.Template.DeepCopy()
	template.Labels = withLabel(template.Labels, hash)
	selector := p.d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withLabel(selector.MatchLabels, hash)
	var size int32
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.d.Namespace, Name: p.d.Name + "-" + hash, Labels: maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p.d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &size, MinReadySeconds: p.d.Spec.MinReadySeconds, Selector: selector, Template: template},
	}
	p.newest, p.created = rs, true
	p.all = append(p.all, rs)
	*rs.Spec.Replicas = p.newSize()
	p.annotate(rs, next)
	p.sized(rs)
	p.a.Create = rs
	if *rs.Spec.Replicas > 0 {
		p.a.Scaled = append(p.a.Scaled, Scaled{rs.Name, 0, *rs.Spec.Replicas})
	}
	if p.hasDeadline() {
		p.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetCreated", fmt.Sprintf("Created new replica set %q", rs.Name))
	}
	p.setRevision(next)
}

func withLabel(l map[string]string, hash string) map[string]string {
	out := maps.Clone(l)
	if out == nil {
		out = map[string]string{}
	}
	out[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return out
}

func (p *plan) setRevision(r string) {
	if p.annotations[revisionAnnotation] == r {
		return
	}
	p.annotations = maps.Clone(p.annotations)
	if p.annotations == nil {
		p.annotations = map[string]string{}
	}
	p.annotations[revisionAnnotation] = r
	p.a.Annotations = p.annotations
}

// own are the annotations that are not copied from a deployment to its sets.
var own = []string{corev1.LastAppliedConfigAnnotation, revisionAnnotation, revisionHistoryAnnotation, desiredAnnotation, maxAnnotation, rollbackAnnotation}

// annotate copies the deployment's annotations to the new set and moves its revision up to next.
func (p *plan) annotate(rs *appsv1.ReplicaSet, next string) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for k, v := range p.d.Annotations {
		if !slices.Contains(own, k) {
			rs.Annotations[k] = v
		}
	}
	was := rs.Annotations[revisionAnnotation]
	n, _ := strconv.ParseInt(next, 10, 64)
	if was != "" && revision(rs) >= n {
		return
	}
	rs.Annotations[revisionAnnotation] = next
	if was == "" {
		return
	}
	history := append(strings.FieldsFunc(rs.Annotations[revisionHistoryAnnotation], func(r rune) bool { return r == ',' }), was)
	for len(strings.Join(history, ",")) > maxHistoryBytes {
		history = history[1:]
	}
	rs.Annotations[revisionHistoryAnnotation] = strings.Join(history, ",")
}

// sized sets a set's annotations with the deployment's desired and maximum replicas.
func (p *plan) sized(rs *appsv1.ReplicaSet) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[desiredAnnotation] = fmt.Sprint(p.want())
	rs.Annotations[maxAnnotation] = fmt.Sprint(p.want() + p.surge())
}

func (p *plan) resize(rs *appsv1.ReplicaSet, to int32) {
	if from := *rs.Spec.Replicas; from != to {
		*rs.Spec.Replicas = to
		p.a.Scaled = append(p.a.Scaled, Scaled{rs.Name, from, to})
	}
	p.sized(rs)
}

func (p *plan) want() int32 {
	if p.d.Spec.Replicas == nil {
		return 1
	}
	return *p.d.Spec.Replicas
}

func (p *plan) rolling() bool {
	return p.d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType && p.d.Spec.Strategy.RollingUpdate != nil
}

// fenceposts resolves maxSurge and maxUnavailable; both zero would never move.
func (p *plan) fenceposts() (surge, unavailable int32) {
	if !p.rolling() {
		return 0, 0
	}
	zero := intstr.FromInt32(0)
	resolve := func(v *intstr.IntOrString, up bool) int32 {
		if v == nil {
			v = &zero
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(v, int(p.want()), up)
		if err != nil {
			return 0
		}
		return int32(n)
	}
	surge = resolve(p.d.Spec.Strategy.RollingUpdate.MaxSurge, true)
	unavailable = resolve(p.d.Spec.Strategy.RollingUpdate.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, p.want())
}

func (p *plan) surge() int32          { s, _ := p.fenceposts(); return s }
func (p *plan) maxUnavailable() int32 { _, u := p.fenceposts(); return u }

func total(sets []*appsv1.ReplicaSet, f func(*appsv1.ReplicaSet) int32) (n int32) {
	for _, rs := range sets {
		n += f(rs)
	}
	return n
}

func size(rs *appsv1.ReplicaSet) int32 { return *rs.Spec.Replicas }

func available(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }

// newSize is the new set's allowed number of replicas.
func (p *plan) newSize() int32 {
	if p.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return p.want()
	}
	have, most := total(p.all, size), p.want()+p.surge()
	if have >= most {
		return size(p.newest)
	}
	return size(p.newest) + min(most-have, p.want()-size(p.newest))
}

// isScaling reports whether the deployment's replicas changed since its sets were annotated.
func (p *plan) isScaling() bool {
	for _, rs := range p.all {
		if size(rs) == 0 {
			continue
		}
		if n, err := strconv.ParseInt(rs.Annotations[desiredAnnotation], 10, 32); err == nil && int32(n) != p.want() {
			return true
		}
	}
	return false
}

// scaleAll follows a change of the deployment's size, in proportion where a roll-out is under way.
func (p *plan) scaleAll() {
	var active []*appsv1.ReplicaSet
	for _, rs := range p.all {
		if size(rs) > 0 {
			active = append(active, rs)
		}
	}
	switch len(active) {
	case 0:
		if p.newest != nil {
			p.resizeIfNot(p.newest)
		} else if len(p.all) > 0 {
			p.resizeIfNot(p.all[len(p.all)-1])
		}
		return
	case 1:
		p.resizeIfNot(active[0])
		return
	}
	if p.saturated() {
		for _, rs := range active {
			if rs != p.newest {
				p.resize(rs, 0)
			}
		}
		return
	}
	if !p.rolling() {
		return
	}
	have := total(active, size)
	var allowed int32
	if p.want() > 0 {
		allowed = p.want() + p.surge()
	}
	add := allowed - have
	slices.SortFunc(active, func(a, b *appsv1.ReplicaSet) int {
		age := byCreation(a, b)
		if add > 0 {
			age = -age // grow the newest first
		}
		return cmp.Or(cmp.Compare(size(b), size(a)), age)
	})
	var added int32
	sizes := make([]int32, len(active))
	for i, rs := range active {
		sizes[i] = size(rs)
		if add != 0 {
			part := p.proportion(rs, add, added)
			sizes[i] += part
			added += part
		}
	}
	if add != 0 {
		sizes[0] = max(sizes[0]+add-added, 0)
	}
	for i, rs := range active {
		p.resize(rs, sizes[i])
	}
}

func (p *plan) resizeIfNot(rs *appsv1.ReplicaSet) {
	if size(rs) != p.want() {
		p.resize(rs, p.want())
	}
}

func (p *plan) saturated() bool {
	if p.newest == nil {
		return false
	}
	n, err := strconv.ParseInt(p.newest.Annotations[desiredAnnotation], 10, 32)
	return err == nil && size(p.newest) == p.want() && int32(n) == p.want() && available(p.newest) == p.want()
}

func (p *plan) proportion(rs *appsv1.ReplicaSet, add, added int32) int32 {
	if size(rs) == 0 || add == 0 || add == added {
		return 0
	}
	part := -size(rs)
	if p.want() != 0 {
		before := p.d.Status.Replicas
		if n, err := strconv.ParseInt(rs.Annotations[maxAnnotation], 10, 32); err == nil && n > 0 {
			before = int32(n)
		}
		if before == 0 {
			before = p.want() + p.surge()
		}
		part = int32(math.Round(float64(size(rs))*float64(p.want()+p.surge())/float64(before))) - size(rs)
	}
	if add > 0 {
		return min(part, add-added)
	}
	return max(part, add-added)
}
