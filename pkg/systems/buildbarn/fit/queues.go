package fit

import (
	"cmp"
	"slices"
	"strings"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// queues compares a worker's queues with the queues of its scheduler, and with the actions that frontends forward to
// it. It only warns: workers may serve other clients, and schedulers create queues for workers that connect.
func (c *comparison) queues() error {
	if c.Component != "worker" {
		return nil
	}
	scheduler := ""
	for _, client := range c.Clients {
		if t := targets(client.Address, c.Namespace); client.Field == "scheduler.address" && len(t) > 0 {
			scheduler = t[len(t)-1].service
		}
	}
	for _, q := range c.Queues {
		if known := c.Schedulers[scheduler]; known != nil {
			c.queue(q, scheduler, known.Queues)
		}
		c.routes(q, scheduler)
	}
	return nil
}

// queue warns if the scheduler does not predeclare the worker's queue, although it predeclares other queues or the
// worker may scale to zero.
func (c *comparison) queue(q protocol.Queue, scheduler string, declared []protocol.Queue) {
	same := func(d protocol.Queue) bool { return d.Prefix == q.Prefix && slices.Equal(d.Platform, q.Platform) }
	switch {
	case slices.ContainsFunc(declared, same):
	case c.Empty:
		c.warn(q.Place,
			"BuildbarnScheduler %s has no queue (predeclaredPlatformQueues) for %s: it refuses their actions once "+
				"they have been scaled to zero for a while, so they are never scaled up again", scheduler, described(q))
	case len(declared) > 0:
		c.warn(q.Place,
			"BuildbarnScheduler %s has no queue for %s, only for %s (predeclaredPlatformQueues): it refuses actions for "+
				"these workers while none is connected", scheduler, described(q), described(declared[0]))
	}
}

// routes warns if frontends forward actions to the scheduler, but none for the worker's instance names.
func (c *comparison) routes(q protocol.Queue, scheduler string) {
	var others []string
	for _, facts := range c.Frontends {
		if facts == nil {
			return // it may have the route
		}
		for _, r := range facts.Routes {
			if !slices.ContainsFunc(targets(r.Address, c.Namespace), func(t target) bool { return t.service == scheduler }) {
				continue
			}
			if begins(r.Added, q.Prefix) || begins(q.Prefix, r.Added) {
				return
			}
			others = append(others, cmp.Or(r.Added, "any"))
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		c.warn(q.Place, "no frontend in this namespace forwards actions for %s to %s: their addInstanceNamePrefix is %s",
			described(q), scheduler, strings.Join(slices.Compact(others), ", "))
	}
}

// begins reports whether prefix consists of the first components of an instance name.
func begins(name, prefix string) bool {
	return prefix == "" || name == prefix || strings.HasPrefix(name, prefix+"/")
}

func described(q protocol.Queue) string {
	text := "instance names that begin with " + q.Prefix
	if q.Prefix == "" {
		text = "any instance name"
	}
	var list []string
	for _, p := range q.Platform {
		list = append(list, p.Name+"="+p.Value)
	}
	if len(list) == 0 {
		return text + " without platform properties"
	}
	return text + " and platform " + strings.Join(list, ", ")
}
