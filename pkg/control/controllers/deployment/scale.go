package deployment

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// sized annotates a set with the deployment's desired and maximum replicas.
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

// fenceposts resolves maxSurge and maxUnavailable. If both are zero, maxUnavailable becomes 1, so that a rollout
// progresses.
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

func (p *plan) surge() int32 { s, _ := p.fenceposts(); return s }

func (p *plan) maxUnavailable() int32 { _, u := p.fenceposts(); return u }

func total(sets []*appsv1.ReplicaSet, f func(*appsv1.ReplicaSet) int32) (n int32) {
	for _, rs := range sets {
		n += f(rs)
	}
	return n
}

func size(rs *appsv1.ReplicaSet) int32 { return *rs.Spec.Replicas }

func available(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }

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

// scaleAll applies a change of the deployment's size, in proportion to the sets' sizes while a rollout is under way.
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
		before = cmp.Or(before, p.want()+p.surge())
		part = int32(math.Round(float64(size(rs))*float64(p.want()+p.surge())/float64(before))) - size(rs)
	}
	if add > 0 {
		return min(part, add-added)
	}
	return max(part, add-added)
}
