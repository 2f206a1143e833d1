package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Explanation describes how a pod would be scheduled now.
type Explanation struct {
	Pod     *corev1.Pod
	Profile string // "" if the pod names a scheduler that is not ours; it is then explained with the default profile
	Ordered bool   // scores are compared one after the other, not added up
	// Summary is the message for a pod that fits on no node. Empty if it fits.
	Summary string
	// Group says what the pod's gang waits for, or that it has enough. Empty if the pod is scheduled alone.
	Group string
	// Filters are the profile's filters, Applied those that apply to this pod.
	Filters, Applied []string
	Scores           []ScoreWeight
	// Nodes are all nodes, or the requested ones. Nodes that fit come first, by score.
	Nodes []NodeVerdict
}

// ScoreWeight is a score of the profile that applies to the pod.
type ScoreWeight struct {
	Name   string
	Weight int64
}

// NodeVerdict is the result of the steps for one node.
type NodeVerdict struct {
	Name string
	Fits bool
	// Refused maps the filters that reject the node to their reasons, followed by what the pod wants of this node.
	Refused map[string][]string
	// Scores are the weighted scores of a node that fits, in the order of Explanation.Scores. Total is their sum, or
	// 0 if they are ordered.
	Scores []int64
	Total  int64
}

// Explain applies each filter and score of a pod's profile to all nodes in the client's cache. A pod that has a node
// is explained as if it were scheduled now. It returns an error if the pod or the nodes cannot be read. Time and
// memory are proportional to the number of pods.
func Explain(ctx context.Context, cfg Config, key ctrlclient.ObjectKey) (Explanation, error) {
	c := cfg.Client
	var of corev1.Pod
	if err := c.Cache().Get(ctx, key, &of); err != nil {
		return Explanation{}, err
	}
	s, err := New(cfg)
	if err != nil {
		return Explanation{}, err
	}
	var nodes corev1.NodeList
	if err := c.Cache().List(ctx, &nodes); err != nil {
		return Explanation{}, err
	}
	var pods corev1.PodList
	if err := c.Cache().List(ctx, &pods); err != nil {
		return Explanation{}, err
	}
	slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range nodes.Items {
		s.state.setNode(&nodes.Items[i])
	}
	waiting := 0 // pods of its group, including itself
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && len(p.Spec.SchedulingGates) == 0 &&
			gangOf(p) == gangOf(&of) {
			waiting++
		}
		switch {
		case p.UID == of.UID || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case p.Spec.NodeName != "":
			s.state.assign(newPodInfo(p), p.Spec.NodeName)
		case p.Status.NominatedNodeName != "" && p.DeletionTimestamp == nil:
			s.state.nominate(newPodInfo(p), s.state.nodes[p.Status.NominatedNodeName])
		}
	}
	out := s.state.explain(&of)
	out.Group = s.state.gangs.explain(gangOf(&of), waiting)
	return out, nil
}

func (s *state) explain(of *corev1.Pod) Explanation {
	out := Explanation{Pod: of}
	if f := s.profileOf(of); f != nil {
		out.Profile = f.name
	}
	waiting := *of // shallow copy: only its first level is changed
	waiting.Spec.NodeName = ""
	info := s.info(&waiting)
	out.Ordered = info.profile.ordered
	c := s.cycle(info)
	active := c.prepare()
	for i := range info.profile.filters {
		out.Filters = append(out.Filters, info.profile.filters[i].name)
	}
	for _, f := range active {
		out.Applied = append(out.Applied, f.name)
	}
	failed := &failure{cycle: c, active: active, refused: make([]uint8, len(s.order))}
	var fit []*nodeInfo
	out.Nodes = make([]NodeVerdict, len(s.order))
	for i, n := range s.order {
		v := &out.Nodes[i]
		v.Name, v.Fits = n.name, true
		for by, f := range active {
			reasons := f.refuse(c, n)
			if reasons == nil {
				continue
			}
			if v.Fits {
				failed.refused[i] = uint8(by)
				v.Fits, v.Refused = false, map[string][]string{}
			}
			v.Refused[f.name] = c.detailed(f.name, n, reasons)
		}
		if v.Fits {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		out.Summary = failed.message("")
	}
	out.score(c, fit)
	slices.SortStableFunc(out.Nodes, func(a, b NodeVerdict) int {
		switch {
		case a.Fits && !b.Fits:
			return -1
		case !a.Fits && b.Fits:
			return 1
		case out.Ordered:
			return slices.Compare(b.Scores, a.Scores)
		}
		return cmp.Compare(b.Total, a.Total)
	})
	return out
}

func (e *Explanation) score(c *cycle, fit []*nodeInfo) {
	if len(fit) == 0 {
		return
	}
	of := make(map[string]*NodeVerdict, len(e.Nodes))
	for i := range e.Nodes {
		of[e.Nodes[i].Name] = &e.Nodes[i]
	}
	for i := range c.profile.scores {
		f := &c.profile.scores[i]
		if f.prepare != nil && !f.prepare(c) {
			continue
		}
		e.Scores = append(e.Scores, ScoreWeight{f.name, f.weight})
		raw, weighted := make([]int64, len(fit)), make([]int64, len(fit))
		for j, n := range fit {
			raw[j] = f.of(c, n)
			weighted[j] = f.weight * raw[j]
		}
		switch {
		case e.Ordered:
			weighted = raw
		case f.relative:
			clear(weighted)
			stretch(raw, weighted, f.weight)
		}
		for j, n := range fit {
			v := of[n.name]
			v.Scores = append(v.Scores, weighted[j])
			if !e.Ordered {
				v.Total += weighted[j]
			}
		}
	}
}

// Only keeps the verdicts of the named nodes. It returns an error if a node does not exist.
func (e *Explanation) Only(nodes []string) error {
	if len(nodes) == 0 {
		return nil
	}
	for _, name := range nodes {
		if !slices.ContainsFunc(e.Nodes, func(v NodeVerdict) bool { return v.Name == name }) {
			return fmt.Errorf("node %q not found", name)
		}
	}
	e.Nodes = slices.DeleteFunc(e.Nodes, func(v NodeVerdict) bool { return !slices.Contains(nodes, v.Name) })
	return nil
}
