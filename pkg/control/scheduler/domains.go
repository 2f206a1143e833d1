package scheduler

// denseLabel is the part of the nodes from which on the domains of a label are kept in a slice: one in eight. So they
// take at most 32 bytes for each node that has the label, less than the label itself, whatever labels nodes have and
// pods name.
const denseLabel = 8

// domain is a topology domain: the nodes with one value of a label. It is the index in state.order of the first of
// them.
type domain int32

// noDomain is the domain of nodes without the label.
const noDomain domain = -1

// domains divide the nodes by one label. Filters and scores look at thousands of nodes for each pod, for which looking
// up labels takes too long.
type domains struct {
	nodes []domain       // as in state.order; nil if few nodes have the label
	few   map[int]domain // by the index in state.order, if nodes is nil
}

// of returns the domain of a node, or false if it has none or is not known.
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

// nowhere are the domains of a label that no node has.
var nowhere = &domains{}

// domainsOf returns the domains of a label. They are valid until nodes change, and kept until then, but for labels that
// no node has.
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
