package scheduler

// denseLabel decides how the domains of a label are stored: if at least one in eight nodes has the label, in a
// slice, otherwise in a map. They take at most 32 bytes per node that has the label, less than the label itself.
const denseLabel = 8

// domain is a topology domain: the nodes with the same value of a label. Its number is the index in state.order of
// its first node.
type domain int32

// noDomain means that a node does not have the label.
const noDomain domain = -1

// domains divides the nodes by one label. Filters and scores look at thousands of nodes per pod, so looking up
// labels would take too long.
type domains struct {
	nodes []domain       // indexed like state.order; nil if few nodes have the label
	few   map[int]domain // by the index in state.order, if nodes is nil
}

// of returns the domain of a node, or false if it lacks the label or is not in state.order.
func (d *domains) of(n *nodeInfo) (domain, bool) {
	if n == nil || n.at < 0 {
		return noDomain, false
	}
	if d.nodes == nil {
		return d.ofFew(n.at)
	}
	v := d.nodes[n.at]
	return v, v != noDomain
}

func (d *domains) ofFew(at int) (domain, bool) {
	v, ok := d.few[at]
	return v, ok
}

var nowhere = &domains{}

// domainsOf returns a label's domains, valid until nodes change. It does not cache labels that no node has.
func (s *state) domainsOf(key string) *domains {
	if d := s.domains[key]; d != nil {
		return d
	}
	first := map[string]domain{}
	nodes, having := make([]domain, len(s.order)), 0
	for i, n := range s.order {
		value, ok := n.node.Labels[key]
		if !ok {
			nodes[i] = noDomain
			continue
		}
		having++
		v, known := first[value]
		if !known {
			v = domain(i)
			first[value] = v
		}
		nodes[i] = v
	}
	if having == 0 {
		return nowhere
	}
	d := &domains{nodes: nodes}
	if having < len(nodes)/denseLabel {
		d = &domains{few: make(map[int]domain, having)}
		for i, v := range nodes {
			if v != noDomain {
				d.few[i] = v
			}
		}
	}
	s.domains[key] = d
	return d
}
