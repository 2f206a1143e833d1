package deployment

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

func (p *plan) findNew() *appsv1.ReplicaSet {
	for _, rs := range p.all {
		if sameTemplate(&rs.Spec.Template, &p.d.Spec.Template) {
			return rs
		}
	}
	return nil
}

// sameTemplate compares two templates, ignoring the hash label.
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

// revisions sets the new set's revision and annotations. If the set is missing and create is true, it plans its
// creation.
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
			p.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "FoundNewReplicaSet",
				fmt.Sprintf("Found new replica set %q", p.newest.Name))
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
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        &size,
			MinReadySeconds: p.d.Spec.MinReadySeconds,
			Selector:        selector,
			Template:        template,
		},
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
		p.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetCreated",
			fmt.Sprintf("Created new replica set %q", rs.Name))
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

// own are annotations that are not copied from a deployment to its sets.
var own = []string{
	corev1.LastAppliedConfigAnnotation, revisionAnnotation, revisionHistoryAnnotation, desiredAnnotation, maxAnnotation,
	rollbackAnnotation,
}

// annotate copies the deployment's annotations to the new set and raises its revision to next.
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
	history := append(strings.FieldsFunc(rs.Annotations[revisionHistoryAnnotation], func(r rune) bool { return r == ',' }),
		was)
	for len(strings.Join(history, ",")) > maxHistoryBytes {
		history = history[1:]
	}
	rs.Annotations[revisionHistoryAnnotation] = strings.Join(history, ",")
}
