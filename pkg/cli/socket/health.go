package socket

// States of a Health.
const (
	OK = "ok"
	// Warning means that something needs attention but still works.
	Warning = "warning"
	// Unhealthy means that the component does not work.
	Unhealthy = "unhealthy"
)

// Health is the state of one component.
type Health struct {
	// Component is one of api, store, cache, reconcilers, scheduler, nodes, certificates, proxy, dns, network and node.
	Component string `json:"component"`
	State     string `json:"state"`
	// Summary is one line. Details are at most 20 lines with the problems and their causes.
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
