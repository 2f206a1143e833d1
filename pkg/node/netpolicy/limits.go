package netpolicy

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// limits bound the cost of policies, so that one namespace cannot block others. A namespace over a limit stays
// isolated and allows nothing.
type limits struct {
	// work limits a namespace, each time its policies are resolved. It counts compared pods (times the selector's
	// length), rules, and named ports.
	work int
	size int // of a namespace's sets and chains as JSON, in bytes
	node int // of a node's sets and chains as JSON, in bytes
}

// usual stays well below what a node accepts (maxRules). In a cluster of 10,000 pods it allows each namespace rules
// with 100 different selectors that are compared with all pods, or 20 if each of them selects all pods, and at most
// 2,000 different sets.
var usual = limits{work: 1_000_000, size: 4 << 20, node: 48 << 20}

// Upper bounds of the size of elements as JSON, in bytes. A set or chain counts more than its name, since the kernel
// uses over a kilobyte for each and walks the whole table to add one.
const (
	nameSize        = 2 << 10
	addressSize     = 18
	rangeSize       = 52
	destinationSize = 52
	ruleSize        = 84
)

// size returns an upper bound of the size of the sets, in bytes.
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

// spend takes work from the namespace's remaining budget. It reports whether the namespace is within its limits.
func (t *tenant) spend(work int) bool {
	if work > t.left.work {
		t.exceeded(fmt.Sprintf("resolving its policies takes more than %d steps (pods compared with selectors, rules times "+
			"ports, exceptions of blocks)", t.limits.work))
	} else {
		t.left.work -= work
	}
	return t.over == nil
}

// hold takes the size of a set or chain with a number of elements from the namespace's remaining budget. It reports
// whether the namespace is within its limits.
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

// weight is the cost of comparing a selector with one object, 1 for most selectors.
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
