// Package failpoint lets tests fail or kill the agent at each place where it acquires a resource of a node.
//
// Its invariant: without a Hook, which only tests set, a point does nothing.
package failpoint

// Hook is called with the name of each point that is reached. The acquisition fails with the error that it returns. A
// nil Hook does nothing.
type Hook func(point string) error

// At reaches a point.
func (h Hook) At(point string) error {
	if h == nil {
		return nil
	}
	return h(point)
}
