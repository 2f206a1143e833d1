package fairness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func who(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

func account(namespace, name string) user.Info {
	return who("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
}

func resource(verb, group, namespace, name, sub string) *request.RequestInfo {
	return &request.RequestInfo{
		IsResourceRequest: true,
		Verb:              verb,
		APIGroup:          group,
		Namespace:         namespace,
		Resource:          name,
		Subresource:       sub,
	}
}

func TestClassify(t *testing.T) {
	s := New(Config{})
	pods := resource("get", "", "d", "pods", "")
	lease := func(verb, namespace string) *request.RequestInfo {
		return resource(verb, "coordination.k8s.io", namespace, "leases", "")
	}
	node := who("system:node:n", user.NodesGroup)
	for _, c := range []struct {
		user                user.Info
		info                *request.RequestInfo
		schema, level, flow string
	}{
		{who("admin", user.SystemPrivilegedGroup), pods, "exempt", "exempt", ""},
		{who("x"), &request.RequestInfo{Verb: "get", Path: "/readyz"}, "probes", "exempt", ""},
		{who("x"), &request.RequestInfo{Verb: "get", Path: "/readyz/etcd"}, "probes", "exempt", ""},
		{who("x"), &request.RequestInfo{Verb: "get", Path: "/readyzz"}, "global-default", "global-default", "x"},
		{who("x"), &request.RequestInfo{Verb: "get", Path: "/version"}, "global-default", "global-default", "x"},
		{
			who(user.KubeScheduler), lease("update", "kube-system"), "system-leader-election", "leader-election",
			user.KubeScheduler,
		},
		{
			account("kube-system", "a"), lease("get", "x"), "system-leader-election", "leader-election",
			"system:serviceaccount:kube-system:a",
		},
		{account("kube-system", "a"), lease("list", "x"), "kube-system-service-accounts", "workload-high", "x"},
		{node, resource("patch", "", "", "nodes", "status"), "system-node-high", "node-high", "system:node:n"},
		{node, lease("update", "kube-node-lease"), "system-node-high", "node-high", "system:node:n"},
		{node, pods, "system-nodes", "system", "system:node:n"},
		{who(user.KubeControllerManager), pods, "kube-controller-manager", "workload-high", "d"},
		{who(user.KubeScheduler), pods, "kube-scheduler", "workload-high", "d"},
		{account("kube-system", "a"), pods, "kube-system-service-accounts", "workload-high", "d"},
		{account("kube-systemic", "a"), pods, "service-accounts", "workload-low", "system:serviceaccount:kube-systemic:a"},
		{account("d", "a"), lease("update", "d"), "service-accounts", "workload-low", "system:serviceaccount:d:a"},
		{who("jane"), pods, "global-default", "global-default", "jane"},
		{&user.DefaultInfo{Name: "nobody"}, pods, "catch-all", "catch-all", "nobody"},
	} {
		got := s.Classify(c.user, c.info)
		require.Equal(t, []string{c.schema, c.level, c.flow}, []string{got.Schema(), got.Level(), got.flow}, "%s %+v",
			c.user.GetName(), c.info)
	}
	// Upstream's concurrency limits: 600 seats over 245 shares.
	require.Equal(t,
		map[string]int{
			"system":          74,
			"node-high":       98,
			"leader-election": 25,
			"workload-high":   98,
			"workload-low":    245,
			"global-default":  49,
			"catch-all":       13,
		}, s.Limits())
}

var pods = resource("list", "", "d", "pods", "")

// seated begins a request of the user and takes a seat, which must be free.
func seated(t *testing.T, s *Set, u user.Info) *Ticket {
	t.Helper()
	k, err := s.Begin(s.Classify(u, pods), false)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, k.Acquire(ctx))
	return &k
}

// fill takes all seats that the user can get.
func fill(t *testing.T, s *Set, u user.Info) []*Ticket {
	t.Helper()
	var all []*Ticket
	for {
		k, err := s.Begin(s.Classify(u, pods), false)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if k.Acquire(ctx) != nil {
			k.End()
			return all
		}
		all = append(all, &k)
	}
}

func reason(err error) string {
	var r *Rejected
	if errors.As(err, &r) {
		return r.Reason
	}
	return fmt.Sprint(err)
}

// A user may take idle seats, but not the guaranteed seats of other levels.
func TestAHogLeavesOthersTheirSeats(t *testing.T) {
	s := New(Config{Seats: 100})
	hog := fill(t, s, account("d", "hog"))
	require.Greater(t, len(hog), 40, "idle seats are lent")
	require.Less(t, len(hog), 100)
	for _, u := range []user.Info{
		account("d", "other"), who("system:node:n", user.NodesGroup), who(user.KubeScheduler), account("kube-system", "a"),
		who("jane"),
	} {
		seated(t, s, u).End()
	}
}

// However few seats exist, each level with shares serves at least one request: with one seat, each level has one, as
// upstream.
func TestFewSeatsAreForEverybody(t *testing.T) {
	all := []user.Info{
		account("d", "a"),
		who("jane"),
		who(user.KubeScheduler),
		who("system:node:n", user.NodesGroup),
		&user.DefaultInfo{Name: "nobody"},
	}
	for seats := 1; seats <= 20; seats++ {
		s := New(Config{Seats: seats})
		for _, u := range all {
			seated(t, s, u)
		}
	}
}

// Within a level, the flow with the fewest seats is next.
func TestTheFlowWithTheFewestSeatsIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Seats: 50})
		hog := fill(t, s, account("d", "hog"))
		fill(t, s, account("d", "hog-2"))
		var order []string
		wait := func(name string) {
			k, err := s.Begin(s.Classify(account("d", name), pods), false)
			require.NoError(t, err)
			go func() {
				if k.Acquire(context.Background()) == nil {
					order = append(order, name)
				}
			}()
			synctest.Wait()
		}
		for range 40 {
			wait("hog")
		}
		wait("one")
		wait("one")
		wait("two")
		for range 3 {
			hog[0].Release()
			hog = hog[1:]
			synctest.Wait()
		}
		require.Equal(t, []string{"one", "two", "one"}, order)
		time.Sleep(time.Minute) // fake time: the other waiters time out
		synctest.Wait()
		require.Len(t, order, 3)
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{
			Seats:         10,
			QueueLength:   2,
			Queued:        3,
			Wait:          5 * time.Second,
			Outstanding:   40,
			Streams:       2,
			BodyBytes:     200 << 10,
			FlowBodyBytes: 100 << 10,
		})
		fill(t, s, account("d", "hog"))
		fill(t, s, account("d", "hog-2"))
		results := make(chan string, 10)
		wait := func(name string) {
			k, err := s.Begin(s.Classify(account("d", name), pods), false)
			require.NoError(t, err)
			go func() {
				err := k.Acquire(context.Background())
				k.End()
				results <- name + ": " + reason(err)
			}()
			synctest.Wait()
		}
		wait("a")
		wait("a")
		wait("a")
		require.Equal(t, "a: queue-full", <-results, "the bound of a flow")
		wait("b")
		wait("c")
		require.Equal(t, "a: queue-full", <-results, "the longest queue gives way")
		wait("a")
		require.Equal(t, "a: queue-full", <-results, "the bound of the level")
		began := time.Now()
		require.ElementsMatch(t, []string{"a: time-out", "b: time-out", "c: time-out"},
			[]string{<-results, <-results, <-results})
		require.Equal(t, 5*time.Second, time.Since(began))

		class := s.Classify(who("jane"), pods)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var all []Ticket
		for range 40 {
			k, err := s.Begin(class, false)
			require.NoError(t, err)
			all = append(all, k)
		}
		_, err := s.Begin(class, false)
		require.Equal(t, "outstanding", reason(err))
		fill(t, s, who("joe"))
		fill(t, s, who("jill"))
		require.Equal(t, "cancelled", reason(all[0].Acquire(ctx)))
		for range 2 {
			_, err := s.Begin(class, true)
			require.NoError(t, err)
		}
		_, err = s.Begin(class, true)
		require.Equal(t, "streams", reason(err))

		require.NoError(t, all[0].Hold(90<<10))
		require.Equal(t, "body-bytes", reason(all[1].Hold(11<<10)), "the bound of a flow")
		k, err := s.Begin(s.Classify(who("jim"), pods), false)
		require.NoError(t, err)
		require.NoError(t, k.Hold(100<<10))
		k, err = s.Begin(s.Classify(who("jack"), pods), false)
		require.NoError(t, err)
		require.Equal(t, "body-bytes", reason(k.Hold(65<<10)), "the bound of all")
		require.NoError(t, k.Hold(60<<10), "a small body has a reserve")
		all[0].End()
		require.NoError(t, k.Hold(20<<10))

		require.Equal(t, "concurrency-limit", reason(func() error {
			for {
				k, err := s.Begin(s.Classify(&user.DefaultInfo{Name: "nobody"}, pods), false)
				require.NoError(t, err)
				if err := k.Acquire(ctx); err != nil {
					return err
				}
			}
		}()), "catch-all has no queue")
	})
}

// Seats add up after any sequence of operations.
func TestSeatsAreCounted(t *testing.T) {
	users := []user.Info{
		account("d", "a"), account("d", "b"), who("jane"), who("system:node:n", user.NodesGroup), account("kube-system", "x"),
		who(user.KubeScheduler),
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := New(Config{Seats: rapid.IntRange(1, 30).Draw(rt, "seats"), Queued: 5, QueueLength: 3})
		most := 0
		for _, l := range s.levels {
			most += l.guaranteed
		}
		most += s.pool
		configured := false
		var open []*Ticket
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "step") {
			case 4:
				var levels []*flowcontrol.PriorityLevelConfiguration
				for _, l := range bootstrap.SuggestedPriorityLevelConfigurations {
					if rapid.Bool().Draw(rt, l.Name) {
						l = l.DeepCopy()
						l.Spec.Limited.NominalConcurrencyShares = new(rapid.Int32Range(0, 100).Draw(rt, "shares"))
						l.Spec.Limited.LendablePercent = new(rapid.Int32Range(0, 100).Draw(rt, "lendable"))
						l.Spec.Limited.BorrowingLimitPercent = new(rapid.Int32Range(0, 100).Draw(rt, "borrowing"))
						levels = append(levels, l)
					}
				}
				s.Configure(levels, bootstrap.SuggestedFlowSchemas)
				configured = true // more seats may be in use than the new configuration allows
			case 0, 1:
				k, err := s.Begin(s.Classify(rapid.SampledFrom(users).Draw(rt, "user"), pods), false)
				require.NoError(rt, err)
				_ = k.Hold(10)
				if k.Acquire(ctx) != nil {
					k.End()
					continue
				}
				open = append(open, &k)
			case 2:
				if len(open) > 0 {
					open[0].Release()
					open[0].Release()
				}
			case 3:
				if len(open) > 0 {
					open[0].End()
					open[0].End()
					open = open[1:]
				}
			}
			executing := 0
			for _, l := range s.levels {
				require.GreaterOrEqual(rt, l.executing, 0)
				executing += l.executing
			}
			if !configured {
				require.LessOrEqual(rt, executing, most)
			}
		}
		for _, k := range open {
			k.End()
		}
		require.Zero(rt, s.pooled)
		require.Zero(rt, s.held)
		require.False(rt, slices.ContainsFunc(s.levels, func(l *level) bool { return l.retired }))
		for _, l := range s.levels {
			require.Zero(rt, l.executing)
			require.Zero(rt, l.waiting)
			require.Empty(rt, l.queued)
			for _, f := range l.flows {
				require.Zero(rt, f.outstanding+f.executing+f.held+len(f.waiters))
			}
		}
	})
}

// Idle flows are removed.
func TestIdleFlowsAreForgotten(t *testing.T) {
	s := New(Config{})
	for i := range 10_000 {
		seated(t, s, who(fmt.Sprint("user-", i))).End()
	}
	for _, l := range s.levels {
		require.LessOrEqual(t, len(l.flows), 2*idleFlows)
	}
}

func BenchmarkUncontended(b *testing.B) {
	s := New(Config{})
	ctx := context.Background()
	for name, u := range map[string]user.Info{
		"account": account("d", "a"),
		"node":    who("system:node:n", user.NodesGroup),
		"user":    who("jane"),
		"admin":   who("admin", user.SystemPrivilegedGroup),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				k, err := s.Begin(s.Classify(u, pods), false)
				if err == nil {
					err = k.Acquire(ctx)
				}
				if err != nil {
					b.Fatal(err)
				}
				k.Release()
				k.End()
			}
		})
	}
}
