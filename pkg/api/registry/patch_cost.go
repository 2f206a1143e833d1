package registry

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/api/payload"
)

// Limits on the cost of a patch, in list items moved or compared.
const (
	maxMoved    = 50_000_000
	maxCompared = 8_000_000 // 2,000 items into a list of 2,000 (maxItems): 0.4 s
)

// checkCost limits the cost of patching an object. The JSON patch library decodes one level at a time, keeping the
// text of each, and copies the list for each item that is added or removed.
func (p *patch) checkCost(before []byte) error {
	have, err := payload.Measure(before, nil)
	if err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	depth := int64(max(have.Depth, p.shape.Depth))
	copied := min(p.copies*int64(len(before)+len(p.data)), maxPatchBytes)
	if have.Nested+p.shape.Nested+copied*depth > payload.MaxNested {
		return apierrors.NewRequestEntityTooLargeError("the patch or the object is too large for its nesting depth")
	}
	if longest := max(have.Longest, p.shape.Longest) + int64(len(p.ops)); p.indexed*longest > maxMoved {
		return apierrors.NewRequestEntityTooLargeError("the patch moves too many list items")
	}
	return nil
}

// checkMergeCost limits the cost of a strategic merge, which searches the object's list for each item of the patch.
func (p *patch) checkMergeCost(before map[string]any) error {
	const few = 64
	if p.shape.Items <= few {
		return nil
	}
	if (longestList(before)+p.shape.Longest)*p.shape.Items > maxCompared {
		return apierrors.NewRequestEntityTooLargeError("the patch compares too many list items")
	}
	return nil
}

func longestList(v any) (n int64) {
	switch v := v.(type) {
	case map[string]any:
		for _, in := range v {
			n = max(n, longestList(in))
		}
	case []any:
		n = int64(len(v))
		for _, in := range v {
			n = max(n, longestList(in))
		}
	}
	return n
}
