package socket

// The states of Health.
const (
	OK = "ok"
	// Warning needs attention, but nothing fails because of it yet.
	Warning = "warning"
	// Unhealthy means that the component does not work.
	Unhealthy = "unhealthy"
)

// Health is the state of one component.
type Health struct {
	// Component is one of api, store, cache, reconcilers, scheduler, nodes, certificates, proxy, dns and node.
	Component string `json:"component"`
	State     string `json:"state"`
	// Summary is one line; Details are the problems and their causes, at most 20 lines.
	Summary string   `json:"summary"`
	Details []string `json:"details,omitempty"`
}

// Worst returns the worst state in all.
func Worst(all []Health) string {
	worst := OK
	for _, h := range all {
		if h.State == Unhealthy || h.State == Warning && worst == OK {
			worst = h.State
		}
	}
	return worst
}
