package tainteviction

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

type taintOn struct{ node, key, value string }

// sightings records when taints without timeAdded were first seen. It is updated by events and by reconciles,
// because a taint may be removed and added again between two reconciles.
type sightings struct {
	mu    sync.Mutex
	first map[taintOn]time.Time
}

func (s *sightings) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = map[taintOn]time.Time{}
}

// nodes maps a node whose taints change to itself.
func (s *sightings) nodes(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	now, ok := is.(*corev1.Node)
	if !ok {
		s.note(before.Name, nil, env.Now())
		return []engine.Request{engine.RequestFor("", before.Name)}
	}
	if before != nil && equality.Semantic.DeepEqual(before.Spec.Taints, now.Spec.Taints) {
		return nil
	}
	s.note(now.Name, now.Spec.Taints, env.Now())
	return []engine.Request{engine.RequestFor("", now.Name)}
}

// note records when taints without timeAdded were first seen, and forgets removed ones. since returns when a taint
// was added.
func (s *sightings) note(node string, taints []corev1.Taint, now time.Time) (since func(*corev1.Taint) time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[taintOn]time.Time{}
	for _, t := range taints {
		if t.Effect != corev1.TaintEffectNoExecute || t.TimeAdded != nil {
			continue
		}
		k := taintOn{node, t.Key, t.Value}
		if _, ok := s.first[k]; !ok {
			s.first[k] = now
		}
		there[k] = s.first[k]
	}
	for k := range s.first {
		if _, ok := there[k]; k.node == node && !ok {
			delete(s.first, k)
		}
	}
	return func(t *corev1.Taint) time.Time {
		if t.TimeAdded != nil {
			return t.TimeAdded.Time
		}
		return there[taintOn{node, t.Key, t.Value}]
	}
}
