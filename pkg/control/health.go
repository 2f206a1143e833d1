package control

// The states of a part of the cluster, as Health has them.
const (
	OK = "ok"
	// Warning needs somebody's attention, yet nothing fails because of it now.
	Warning = "warning"
	// Unhealthy does not do its work.
	Unhealthy = "unhealthy"
)

// Health is how one part fares.
type Health struct {
	// Component is one of api, store, cache, reconcilers, scheduler, nodes, certificates, proxy, dns and node.
	Component string `json:"component"`
	State     string `json:"state"`
	// Summary is one line; Details are what is wrong and why, at most 20 lines.
	Summary string   `json:"summary"`
	Details []string `json:"details,omitempty"`
}

// Worst is the worst state of all.
func Worst(all []Health) string {
	worst := OK
	for _, h := range all {
		if h.State == Unhealthy || h.State == Warning && worst == OK {
			worst = h.State
		}
	}
	return worst
}
