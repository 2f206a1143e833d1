package cost

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// stored are objects that reconcilers and the scheduler work on.
var stored = []grown{
	{"tolerations", pods, pod + `,"tolerations":[`, `{"key":"a%[1]d","operator":"Exists","effect":"NoExecute"}`, `]}}`},
	{"node affinity terms", pods, affinity + `"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":` +
		`{"nodeSelectorTerms":[`, `{"matchExpressions":[{"key":"a%[1]d","operator":"Exists"}]}`, `]}}}}}`},
	{"preferred nodes", pods, affinity + `"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[`,
		`{"weight":1,"preference":{"matchExpressions":[{"key":"a%[1]d","operator":"Exists"}]}}`, `]}}}}`},
	{"pod affinity", pods, affinity + `"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[`,
		`{"topologyKey":"a%[1]d","labelSelector":{"matchLabels":{"a%[1]d":"b"}}}`, `]}}}}`},
	{"preferred pods", pods, affinity + `"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[`,
		`{"weight":1,"podAffinityTerm":{"topologyKey":"a","labelSelector":{"matchExpressions":[{"key":"a%[1]d",` +
			`"operator":"Exists"}]}}}`, `]}}}}`},
	{"spread", pods, pod + `,"topologySpreadConstraints":[`, `{"topologyKey":"a%[1]d","maxSkew":1,` +
		`"whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"x":"y"}}}`, `]}}`},
	{"node selector", pods, pod + `,"nodeSelector":{`, `"a%d":"b"`, `}}}`},
	{"owners", maps, `{"metadata":{"name":"new","ownerReferences":[`,
		`{"apiVersion":"v1","kind":"ConfigMap","name":"a%[1]d","uid":"u%[1]d"}`, `]}}`},
	{"service selector", services, selector, `"a%d":"b"`, `},"ports":[{"port":1}]}}`},
	{"replicas with labels", in("apps", "v1", "replicasets"), `{"metadata":{"name":"new"},"spec":{"replicas":2,"selector":` +
		`{"matchLabels":{"a":"b"}},"template":{"spec":{"containers":[{"name":"c","image":"i"}]},"metadata":{"labels":{"a":"b",`,
		`"a%d":"b"`, `}}}}}`},
	{"replicas with values", in("apps", "v1", "replicasets"), `{"metadata":{"name":"new"},"spec":{"replicas":2,"template":` +
		`{"spec":{"containers":[{"name":"c","image":"i"}]},"metadata":{"labels":{"a":"a1000000"}}},"selector":` +
		`{"matchExpressions":[{"key":"a","operator":"In","values":[`, `"a%d"`, `]}]}}}`},
	{"budget", in("policy", "v1", "poddisruptionbudgets"), `{"metadata":{"name":"new"},"spec":{"minAvailable":1,` +
		`"selector":{"matchExpressions":[`, `{"key":"a%d","operator":"Exists"}`, `]}}}`},
	{"subsets", "/api/v1/namespaces/work/endpoints", `{"metadata":{"name":"new"},"subsets":[`,
		`{"addresses":[{"ip":"1.2.3.4"}],"ports":[{"name":"a%d","port":1}]}`, `]}`},
	{"quota", "/api/v1/namespaces/work/resourcequotas", `{"metadata":{"name":"new"},"spec":{"hard":{`,
		`"requests.a/b%d":"1"`, `}}}`},
}

// quiet is how long the process has to do nothing to count as done.
const quiet = 300 * time.Millisecond

// settle returns the processor time until nothing happens any more.
func settle(before time.Duration) time.Duration {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for last := used(); ; {
		<-tick.C
		now := used()
		if now-last < quiet/10 || now-before > 20*most {
			return now - before
		}
		last = now
	}
}

// TestSettled measures what reconcilers and the scheduler do about the largest objects that are accepted.
func TestSettled(t *testing.T) {
	if _, ok := long(); !ok {
		t.Skip("CORACLE_TEST_COST is not set")
	}
	w := newWorld(t, false)
	for i := range 20 {
		w.Node(fmt.Sprintf("node-%d", i))
	}
	for _, a := range stored {
		t.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
			for n := 1500 << 10; n > 1<<10; n = n * 2 / 3 {
				settle(used())
				runtime.GC()
				before := used()
				answer := w.send(call{"POST", a.path, jsons, many(n, a.head, a.part, a.tail, rising)})
				if answer.Code != http.StatusCreated {
					continue
				}
				request := used() - before
				took := settle(before)
				t.Logf("%d KB: %s for the request, %s in all", n>>10, request, took)
				if took > 2*most {
					t.Errorf("too slow")
				}
				w.send(call{http.MethodDelete, a.path + "/new?gracePeriodSeconds=0", "", ""})
				return
			}
			t.Error("never accepted")
		})
	}
}
