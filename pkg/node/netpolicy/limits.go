package netpolicy

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// limits bound what policies may cost, so that those of one namespace do not stop others. A namespace over a limit
// stays isolated and allows nothing.
type limits struct {
	// of a namespace, each time policies are resolved: pods looked at, times the length of selectors; rules, and ports by
	// name
	work int
	size int // of a namespace's sets and chains, in bytes as they are sent
	node int // of a node's, in bytes
}

// usual is well below what a node takes (maxRules). A cluster of 10,000 pods has room for 100 different selectors of
// all pods in the rules of each namespace, or 20 if all of them select all pods; 2,000 different sets are the most.
var usual = limits{work: 1_000_000, size: 4 << 20, node: 48 << 20}

// The most that elements take as JSON, in bytes. A set or a chain counts more than its name: the kernel takes a
// kilobyte and more for each, and looks at all of a table to make another.
const (
	nameSize        = 2 << 10
	addressSize     = 18
	rangeSize       = 52
	destinationSize = 52
	ruleSize        = 84
)

// size is an upper limit of what the sets take, in bytes.
func (s *sets) size() int {
	n := nameSize * (len(s.chains) + len(s.addresses) + len(s.blocks) + len(s.endpoints))
	for _, all := range s.chains {
		n += len(all) * ruleSize
	}
	for _, all := range s.addresses {
		n += len(all) * addressSize
	}
	for _, all := range s.blocks {
		n += len(all) * rangeSize
	}
	for _, all := range s.endpoints {
		n += len(all) * destinationSize
	}
	return n
}

// spend takes work off what is left to the namespace, and reports whether there was enough.
func (t *tenant) spend(work int) bool {
	if work > t.left.work {
		t.exceeded(fmt.Sprintf("resolving its policies takes more than %d steps (pods compared with selectors, rules times "+
			"ports, exceptions of blocks)", t.limits.work))
	} else {
		t.left.work -= work
	}
	return t.over == nil
}

// hold takes elements of a size off what is left to the namespace, and reports whether there was enough.
func (t *tenant) hold(elements, size int) bool {
	if bytes := nameSize + elements*size; bytes > t.left.size {
		t.exceeded(fmt.Sprintf("the sets, addresses and rules of its policies take more than %d KiB", t.limits.size>>10))
	} else {
		t.left.size -= bytes
	}
	return t.over == nil
}

func (t *tenant) exceeded(why string) {
	if t.over == nil {
		t.over = &excess{t.policy, why}
	}
}

// weight is what comparing a selector with one object costs: most cost 1.
func weight(s *metav1.LabelSelector) int {
	if s == nil {
		return 1
	}
	n := len(s.MatchLabels)
	for _, e := range s.MatchExpressions {
		n += 1 + len(e.Values)
	}
	return 1 + n/8
}
