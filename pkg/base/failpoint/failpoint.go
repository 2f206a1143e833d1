// Package failpoint lets tests fail or kill the agent at each place where it acquires a resource of a node. Invariant:
// without a Hook, which only tests set, a point does nothing.
package failpoint

// Hook is called with the name of each point that is reached. If it returns an error, the acquisition fails with it. A
// nil Hook does nothing.
type Hook func(point string) error

// At reaches a point.
func (h Hook) At(point string) error {
	if h == nil {
		return nil
	}
	return h(point)
}
