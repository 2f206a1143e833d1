package cost

import (
	"fmt"
	"net/http"
	"net/http/httptest"
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
	{"autoscaler", in("autoscaling", "v2", "horizontalpodautoscalers"), `{"metadata":{"name":"new"},"spec":{"maxReplicas":3,` +
		`"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"target"},"metrics":[`,
		`{"type":"External","external":{"metric":{"name":"a%d"},"target":{"type":"Value","value":"1"}}}`, `]}}`},
	{"autoscaler of pods", in("autoscaling", "v2", "horizontalpodautoscalers"), `{"metadata":{"name":"new"},"spec":` +
		`{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"target"},"metrics":[`,
		`{"type":"Pods","pods":{"metric":{"name":"a%d"},"target":{"type":"AverageValue","averageValue":"1"}}}`, `]}}`},
	{"indexes that suffice", in("batch", "v1", "jobs"), `{"metadata":{"name":"new"},"spec":{"completionMode":"Indexed",` +
		`"completions":2000000,"parallelism":1,"backoffLimit":0,"template":{"spec":{"restartPolicy":"Never",` +
		`"containers":[{"name":"c","image":"i"}]}},"successPolicy":{"rules":[{"succeededIndexes":"`,
		`%d`, `"}]}}}`},
	{"ingress rules", in("networking.k8s.io", "v1", "ingresses"), `{"metadata":{"name":"new"},"spec":{"rules":[`,
		`{"host":"a%d.example.com","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"s",` +
			`"port":{"number":1}}}}]}}`, `]}}`},
	{"ingress paths", in("networking.k8s.io", "v1", "ingresses"), `{"metadata":{"name":"new"},"spec":{"rules":[` +
		`{"host":"a.example.com","http":{"paths":[`, `{"path":"/a%d","pathType":"Prefix","backend":{"service":` +
		`{"name":"s","port":{"number":1}}}}`, `]}}]}}`},
	{"ingress certificates", in("networking.k8s.io", "v1", "ingresses"), `{"metadata":{"name":"new"},"spec":{` +
		`"defaultBackend":{"service":{"name":"s","port":{"number":1}}},"tls":[`,
		`{"hosts":["a%[1]d.example.com"],"secretName":"a%[1]d"}`, `]}}`},
	{"policy peers", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{},` +
		`"ingress":[{"from":[`, `{"podSelector":{"matchLabels":{"a%d":"b"}},"namespaceSelector":{}}`, `]}]}}`},
	{"policy rules", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{},` +
		`"ingress":[`, `{"from":[{"podSelector":{"matchLabels":{"a%d":"b"}}}],"ports":[{"port":1}]}`, `]}}`},
	{"endpoints of a slice", in("discovery.k8s.io", "v1", "endpointslices"), `{"metadata":{"name":"new","labels":` +
		`{"kubernetes.io/service-name":"s"}},"addressType":"IPv4","ports":[{"name":"p","port":1}],"endpoints":[`,
		`{"addresses":["1.2.3.4"],"hostname":"a%d","conditions":{}}`, `]}`},
	{"ports of a slice", in("discovery.k8s.io", "v1", "endpointslices"), `{"metadata":{"name":"new","labels":` +
		`{"kubernetes.io/service-name":"s"}},"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"]}],"ports":[`,
		`{"name":"a%d","port":1}`, `]}`},
	{"budget of values", in("policy", "v1", "poddisruptionbudgets"), `{"metadata":{"name":"new"},"spec":{"minAvailable":1,` +
		`"selector":{"matchExpressions":[{"key":"a","operator":"In","values":[`, `"a%d"`, `]}]}}}`},
	{"quota scopes", "/api/v1/namespaces/work/resourcequotas", `{"metadata":{"name":"new"},"spec":{"hard":{"pods":"1"},` +
		`"scopeSelector":{"matchExpressions":[`, `{"scopeName":"PriorityClass","operator":"In","values":["a%d"]}`, `]}}}`},
	{"limits of a namespace", "/api/v1/namespaces/work/limitranges", `{"metadata":{"name":"new"},"spec":{"limits":[` +
		`{"type":"Container","max":{`, `"a.b/c%d":"1"`, `}}]}}`},
	{"claim requests", in("resource.k8s.io", "v1", "resourceclaims"), `{"metadata":{"name":"new"},"spec":{"devices":{` +
		`"requests":[`, `{"name":"a%d","exactly":{"deviceClassName":"a","selectors":[{"cel":{"expression":"true"}}]}}`, `]}}}`},
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
	w.send(call{"POST", in("apps", "v1", "deployments"), jsons, `{"metadata":{"name":"target"},"spec":{"selector":` +
		`{"matchLabels":{"t":"t"}},"template":{"metadata":{"labels":{"t":"t"}},"spec":{"containers":[{"name":"c",` +
		`"image":"i","resources":{"requests":{"cpu":"1"}}}]}}}}`})
	for _, a := range stored {
		t.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
			var last *httptest.ResponseRecorder
			for n := 1500 << 10; n > 1<<10; n = n * 2 / 3 {
				settle(used())
				runtime.GC()
				before := used()
				answer := w.send(call{"POST", a.path, jsons, many(n, a.head, a.part, a.tail, rising)})
				if last = answer; answer.Code != http.StatusCreated {
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
			t.Errorf("never accepted: %d %.600s", last.Code, last.Body)
		})
	}
}
