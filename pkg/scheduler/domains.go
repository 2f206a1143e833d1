package scheduler

// mostDomains limits the labels whose domains are kept between cycles: each takes four bytes for each node.
const mostDomains = 64

// domain is a topology domain: the nodes with one value of a label. It is the index in state.order of the first of them, so that it is the
// same whenever it is computed, until nodes change.
type domain int32

// noDomain is that of nodes without the label.
const noDomain domain = -1

// domains divide the nodes by one label. Filters and scores look at thousands of nodes for each pod, for which looking up labels takes too long.
type domains struct {
	nodes []domain // as in state.order; nil: no node has the label
}

// of returns the domain of a node, or false if it has none or is not known.
func (d *domains) of(n *nodeInfo) (domain, bool) {
	if n == nil || n.at < 0 || d.nodes == nil {
		return noDomain, false
	}
	v := d.nodes[n.at]
	return v, v != noDomain
}

// nowhere are the domains of a label that no node has.
var nowhere = &domains{}

// domainsOf returns the domains of a label. They are valid until nodes change.
func (s *state) domainsOf(key string) *domains {
	if d := s.domains[key]; d != nil {
		return d
	}
	first := map[string]domain{}
	nodes := make([]domain, len(s.order))
	for i, n := range s.order {
		value, ok := n.node.Labels[key]
		if !ok {
			nodes[i] = noDomain
			continue
		}
		v, known := first[value]
		if !known {
			v = domain(i)
			first[value] = v
		}
		nodes[i] = v
	}
	if len(first) == 0 {
		return nowhere
	}
	if len(s.domains) >= mostDomains {
		clear(s.domains)
	}
	d := &domains{nodes}
	s.domains[key] = d
	return d
}
