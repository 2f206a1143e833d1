package cost

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func words(n int) string {
	return strings.TrimSuffix(strings.TrimPrefix(many(9*n, "", `"n%d"`, "", rising), ","), ",")
}

// found are the attacks that took more than a second, with the time that they took.
var found = []struct {
	name string
	call call
	code int
}{
	{"a role of 10^9 permissions, minutes", call{"POST", in("rbac.authorization.k8s.io", "v1", "roles") + dryRun, jsons,
		`{"metadata":{"name":"new"},"rules":[{"apiGroups":[` + words(200) + `],"resources":[` + words(200) +
			`],"verbs":[` + words(200) + `],"resourceNames":[` + words(200) + `]}]}`}, 413},
	{"claims of a container, 3.9 s", call{"POST", pods + dryRun, jsons,
		many(220<<10, container+`,"resources":{"claims":[`, `{"name":"a%d"}`, `]}}]}}`, rising)}, 422},
	{"items of a volume, 5.1 s", call{"POST", pods + dryRun, jsons, many(330<<10,
		pod+`,"volumes":[{"name":"v","secret":{"secretName":"a","items":[`, `{"key":"k","path":"p%d"}`, `]}}]}}`, rising)}, 422},
	{"items of a volume with the same path, 2.3 s", call{"POST", pods + dryRun, jsons, many(48<<10,
		pod+`,"volumes":[{"name":"v","secret":{"secretName":"a","items":[`, `{"key":"k","path":"p%d"}`, `]}}]}}`,
		same)}, 201},
	{"IP families, 3.8 s", call{"POST", services + dryRun, jsons, many(96<<10,
		`{"metadata":{"name":"new"},"spec":{"ports":[{"port":1}],"ipFamilies":[`, `"IPv4","a%d"`, `]}}`, rising)}, 422},
	{"an applied list, 1.3 s", asApplied(maps, many(160<<10,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"},"data":{`, `"k%d":""`, `}}`, falling)), 413},
	{"rules of a definition, 3.9 s", call{"POST", crds + dryRun, jsons, many(384<<10, crd(`"properties":{`),
		`"a%d":{"type":"string","maxLength":10,"x-kubernetes-validations":[{"rule":"self != 'a'"}]}`, `}}}}]}}`, rising)}, 413},
	{"a long rule of a policy, 2.2 s", call{"POST", policies, jsons,
		celPolicy(strings.Repeat("object.metadata.name=='a'&&", 2400) + "true")}, 413},
	{"keys of a default in a definition, 2.9 s", call{"POST", crds + dryRun, jsons, many(largest,
		crd(`"properties":{"a":{"type":"object","additionalProperties":{"type":"string"},"default":{`), `"a%d":""`,
		`}}}}}}]}}`, rising)}, 413},
	{"selectors of a claim, 1.0 s", call{"POST", in("resource.k8s.io", "v1", "resourceclaims") + dryRun, jsons,
		many(232<<10, `{"metadata":{"name":"new"},"spec":{"devices":{"requests":[`, `{"name":"a%[1]d","exactly":`+
			`{"deviceClassName":"b","selectors":[{"cel":{"expression":"`+strings.Repeat("device.driver=='a%[1]d'&&", 300)+
			`true"}}]}}`, `]}}}`, rising)}, 413},
	{"resources of a container, 0.9 s", call{"POST", pods + dryRun, jsons,
		many(768<<10, container+`,"resources":{"limits":{`, `"a/b%d":"1"`, `}}}]}}`, rising)}, 422},
	{"labels of the pods of a set, 3.0 s in its reconciler for two pods", call{"POST",
		in("apps", "v1", "replicasets") + dryRun, jsons, many(100<<10, `{"metadata":{"name":"new"},"spec":{"replicas":2,`+
			`"selector":{"matchLabels":{"a":"b"}},"template":{"spec":{"containers":[{"name":"c","image":"i"}]},"metadata":`+
			`{"labels":{"a":"b",`, `"a%d":"b"`, `}}}}}`, rising)}, 422},
	{"patterns of a definition, 2.4 s", call{"POST", crds + dryRun, jsons, many(384<<10, crd(`"properties":{`),
		`"a%d":{"type":"string","pattern":"^((a{100}){9}){1}$"}`, `}}}}]}}`, rising)}, 413},
	{"a custom resource with values that are not allowed, 6.1 s", call{"POST", widgets + dryRun, jsons,
		many(200<<10, widget+`"choice":[`, `"a%d"`, `]}}`, rising)}, 422},
	{"a custom resource that matches none of two schemas, 6.8 s", call{"POST", widgets + dryRun, jsons,
		many(384<<10, widget+`"either":[`, `{"a":"%[1]d","b":1}`, `]}}`, rising)}, 422},
	{"a quota of many resources, 8.5 s in its reconciler", call{"POST", "/api/v1/namespaces/work/resourcequotas" + dryRun,
		jsons, many(1<<20, `{"metadata":{"name":"new"},"spec":{"hard":{`, `"requests.a/b%d":"1"`, `}}}`, rising)}, 422},
	{"resources of a limit range, 1.2 s", call{"POST", "/api/v1/namespaces/work/limitranges" + dryRun, jsons, many(768<<10,
		`{"metadata":{"name":"new"},"spec":{"limits":[{"type":"Container","max":{`, `"a/b%d":"1"`, `}}]}}`, rising)}, 422},
	{"anchors of a YAML document, 1.2 s", call{"POST", maps + dryRun, yamls, strings.ReplaceAll(
		many(2111<<10, "", "a%[1]d: &a%[1]d 1", "\nz: *a1000000", rising), ",", "\n")}, 413},
	{"a list as YAML, 2.5 s", call{"GET", maps, yamls + " " + yamls, ""}, 200},
	{"a custom resource with 200,000 keys, 1.5 s", call{"POST", widgets + dryRun, jsons,
		many(largest, widget+`"mapped":{`, `"a%d":""`, `}}}`, rising)}, 413},
	{"topologies of a storage class, 7.4 s", call{"POST", at("storage.k8s.io", "v1", "storageclasses") + dryRun, jsons,
		many(384<<10, `{"metadata":{"name":"new"},"provisioner":"a/b","allowedTopologies":[`,
			`{"matchLabelExpressions":[{"key":"a%d","values":["b"]}]}`, `]}`, rising)}, 422},
	{"a label value of 3 MB in an object with 44,000 labels, 1.3 s", call{http.MethodPatch,
		maps + "/labelled" + dryRun + "&fieldManager=me&force=true", string(types.ApplyPatchType), many(largest,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"labelled","labels":{"x":"`, `y%d`, `"}}}`, rising)}, 422},
	{"twenty rules about a list of a custom resource, 11 s", call{"POST", widgets + dryRun, jsons,
		many(150<<10, widget+`"manyRules":[`, `%d`, `]}}`, rising)}, 422},
	{"a policy about the keys of a map, 2.4 s", call{"POST", maps + dryRun, jsons,
		many(520<<10, `{"metadata":{"name":"ruled"},"data":{`, `"k%d":""`, `}}`, rising)}, 422},
	{"a condition of a validating webhook about the keys of a map, 2.9 s", call{"POST", maps + dryRun, jsons,
		many(520<<10, `{"metadata":{"name":"new","labels":{"for":"validating"}},"data":{`, `"k%d":""`, `}}`, rising)}, 403},
	{"a condition of a mutating webhook about the keys of a map, 2.9 s", call{"POST", maps + dryRun, jsons,
		many(520<<10, `{"metadata":{"name":"new","labels":{"for":"mutating"}},"data":{`, `"k%d":""`, `}}`, rising)}, 403},
}

// forbid creates a policy about the keys of the ConfigMap "ruled", and waits until it applies.
func (w *world) forbid() {
	for _, r := range []call{
		{"POST", at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), jsons, `{"metadata":{"name":"keys"},` +
			`"spec":{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],` +
			`"resources":["configmaps"],"resourceNames":["ruled"]}]},"validations":[{"expression":"object.data.all(k, k != 'x')"}]}}`},
		{"POST", at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"), jsons,
			`{"metadata":{"name":"keys"},"spec":{"policyName":"keys","validationActions":["Deny"]}}`},
	} {
		answer := w.send(r)
		require.Equal(w.t, http.StatusCreated, answer.Code, "%s: %s", r, answer.Body)
	}
	wrong := call{"POST", maps + dryRun, jsons, `{"metadata":{"name":"ruled"},"data":{"x":""}}`}
	require.Eventually(w.t, func() bool { return w.send(wrong).Code == http.StatusUnprocessableEntity }, time.Minute,
		10*time.Millisecond)
}

// hook creates a webhook of a kind, with a condition about the keys of ConfigMaps that have the kind as a label.
func (w *world) hook(kind string) {
	answer := w.send(call{"POST", at("admissionregistration.k8s.io", "v1", kind+"webhookconfigurations"), jsons,
		`{"metadata":{"name":"keys"},"webhooks":[{"name":"keys.cost.test","admissionReviewVersions":["v1"],` +
			`"sideEffects":"None","clientConfig":{"url":"https://127.0.0.1:1"},` +
			`"objectSelector":{"matchLabels":{"for":"` + kind + `"}},"rules":[{"operations":["CREATE"],"apiGroups":[""],` +
			`"apiVersions":["v1"],"resources":["configmaps"]}],` +
			`"matchConditions":[{"name":"keys","expression":"!object.data.all(k, k != 'x')"}]}]}`})
	require.Equal(w.t, http.StatusCreated, answer.Code, "%s", answer.Body)
}

// TestFound repeats the attacks that were found, each with the size that was the worst.
func TestFound(t *testing.T) {
	w := newWorld(t, true)
	w.define()
	w.forbid()
	w.hook("validating")
	w.hook("mutating")
	for _, a := range found {
		t.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
			s := w.measure(a.call, most)
			t.Log(s)
			require.Equal(t, a.code, s.code, s.said)
			require.Less(t, s.cpu, most)
		})
	}
}
