package cost

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/kind"
)

const (
	maps     = "/api/v1/namespaces/work/configmaps"
	pods     = "/api/v1/namespaces/work/pods"
	services = "/api/v1/namespaces/work/services"
	yamls    = "application/yaml"
	jsons    = "application/json"
	protos   = "application/vnd.kubernetes.protobuf"
	dryRun   = "?dryRun=All"
)

// base are objects that attacks change.
var base = []call{
	{"POST", maps, jsons, `{"metadata":{"name":"small"},"data":{"a":"b"}}`},
	{"POST", pods, jsons, `{"metadata":{"name":"small"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
	{"POST", services, jsons, `{"metadata":{"name":"small"},"spec":{"ports":[{"port":80}]}}`},
	{"POST", maps, jsons, many(600<<10, `{"metadata":{"name":"keys"},"data":{`, `"k%d":""`, `}}`, rising)},
	{"POST", maps, jsons, many(600<<10, `{"metadata":{"name":"labelled","labels":{`, `"k%d":""`, `}}}`, rising)},
	{"POST", maps, jsons, many(110<<10, `{"metadata":{"name":"held","finalizers":[`, `"a/k%d"`, `]}}`, rising)},
}

// grown is an attack with a new object, in which a list or map grows.
type grown struct {
	name, path       string
	head, part, tail string
}

const (
	pod       = `{"metadata":{"name":"new"},"spec":{"containers":[{"name":"c","image":"i"}]`
	container = `{"metadata":{"name":"new"},"spec":{"containers":[{"name":"c","image":"i"`
	affinity  = pod + `,"affinity":{`
	selector  = `{"metadata":{"name":"new"},"spec":{"selector":{`
)

func in(group, version, plural string) string {
	return "/apis/" + group + "/" + version + "/namespaces/work/" + plural
}

func at(group, version, plural string) string { return "/apis/" + group + "/" + version + "/" + plural }

var grownObjects = []grown{
	{"data", maps, `{"metadata":{"name":"new"},"data":{`, `"k%d":""`, `}}`},
	{"binary data", maps, `{"metadata":{"name":"new"},"binaryData":{`, `"k%d":"YQ=="`, `}}`},
	{"immutable secret", "/api/v1/namespaces/work/secrets", `{"metadata":{"name":"new"},"stringData":{`, `"k%d":"YQ=="`, `}}`},
	{"labels", maps, `{"metadata":{"name":"new","labels":{`, `"a/k%d":"v"`, `}}}`},
	{"annotations", maps, `{"metadata":{"name":"new","annotations":{`, `"a/k%d":"v"`, `}}}`},
	{"finalizers", maps, `{"metadata":{"name":"new","finalizers":[`, `"a/k%d"`, `]}}`},
	{"owners", maps, `{"metadata":{"name":"new","ownerReferences":[`,
		`{"apiVersion":"v1","kind":"ConfigMap","name":"a%[1]d","uid":"u%[1]d","blockOwnerDeletion":true}`, `]}}`},
	{"env", pods, container + `,"env":[`, `{"name":"a%[1]d","value":"$(a%[1]d)"}`, `]}]}}`},
	{"env from keys", pods, container + `,"env":[`, `{"name":"a%[1]d","valueFrom":{"configMapKeyRef":{"name":"a","key":"b"}}}`, `]}]}}`},
	{"env from", pods, container + `,"envFrom":[`, `{"prefix":"a%[1]d","configMapRef":{"name":"a"}}`, `]}]}}`},
	{"args", pods, container + `,"args":[`, `"a%d"`, `]}]}}`},
	{"container ports", pods, container + `,"ports":[`, `{"name":"a%[1]d","containerPort":80,"hostPort":80}`, `]}]}}`},
	{"resources", pods, container + `,"resources":{"limits":{`, `"a/b%d":"1"`, `}}}]}}`},
	{"container claims", pods, container + `,"resources":{"claims":[`, `{"name":"a%d"}`, `]}}]}}`},
	{"capabilities", pods, container + `,"securityContext":{"capabilities":{"add":[`, `"a%d"`, `]}}}]}}`},
	{"mounts", pods, pod[:len(pod)-2] + `,"volumeMounts":[`, `{"name":"v%[1]d","mountPath":"/a%[1]d"}`, `]}]}}`},
	{"devices", pods, pod[:len(pod)-2] + `,"volumeDevices":[`, `{"name":"v%[1]d","devicePath":"/a%[1]d"}`, `]}]}}`},
	{"resize policies", pods, pod[:len(pod)-2] + `,"resizePolicy":[`, `{"resourceName":"v%[1]d","restartPolicy":"NotRequired"}`, `]}]}}`},
	{"restart rules", pods, pod[:len(pod)-2] + `,"restartPolicyRules":[`, `{"action":"Restart","exitCodes":{"operator":"In","values":[%[1]d]}}`, `]}]}}`},
	{"volumes", pods, pod + `,"volumes":[`, `{"name":"v%[1]d","emptyDir":{}}`, `]}}`},
	{"volumes without source", pods, pod + `,"volumes":[`, `{"name":"v%[1]d"}`, `]}}`},
	{"volumes and mounts", pods, pod[:len(pod)-2] + `,"volumeMounts":[` + strings.TrimSuffix(strings.Repeat(`{"name":"v","mountPath":"/a"},`, 6000), ",") + `]}],"volumes":[`, `{"name":"v%[1]d","emptyDir":{}}`, `]}}`},
	{"projected sources", pods, pod + `,"volumes":[{"name":"v","projected":{"sources":[`, `{"secret":{"name":"a%[1]d","items":[{"key":"k","path":"p%[1]d"}]}}`, `]}}]}}`},
	{"secret items", pods, pod + `,"volumes":[{"name":"v","secret":{"secretName":"a","items":[`, `{"key":"k","path":"p%[1]d"}`, `]}}]}}`},
	{"downward items", pods, pod + `,"volumes":[{"name":"v","downwardAPI":{"items":[`, `{"path":"p%[1]d","fieldRef":{"fieldPath":"metadata.labels['a%[1]d']"}}`, `]}}]}}`},
	{"init containers", pods, pod + `,"initContainers":[`, `{"name":"a%d","image":"i"}`, `]}}`},
	{"containers", pods, `{"metadata":{"name":"new"},"spec":{"containers":[`, `{"name":"a%d","image":"i"}`, `]}}`},
	{"empty containers", pods, `{"metadata":{"name":"new"},"spec":{"containers":[`, `{"name":"a%d"}`, `]}}`},
	{"ephemeral containers", pods, pod + `,"ephemeralContainers":[`, `{"name":"a%d","image":"i"}`, `]}}`},
	{"tolerations", pods, pod + `,"tolerations":[`, `{"key":"a%[1]d","operator":"Exists","effect":"NoExecute"}`, `]}}`},
	{"node selector", pods, pod + `,"nodeSelector":{`, `"a%d":"b"`, `}}}`},
	{"node affinity terms", pods, affinity + `"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[`,
		`{"matchExpressions":[{"key":"a%[1]d","operator":"NotIn","values":["x"]}]}`, `]}}}}}`},
	{"node affinity values", pods, affinity + `"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"In","values":[`,
		`"x%d"`, `]}]}]}}}}}`},
	{"preferred nodes", pods, affinity + `"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[`,
		`{"weight":1,"preference":{"matchExpressions":[{"key":"a%[1]d","operator":"Exists"}]}}`, `]}}}}`},
	{"pod affinity", pods, affinity + `"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[`,
		`{"topologyKey":"a%[1]d","labelSelector":{"matchLabels":{"a%[1]d":"b"}}}`, `]}}}}`},
	{"pod affinity namespaces", pods, affinity + `"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"a","namespaces":[`,
		`"a%[1]d"`, `]}]}}}}`},
	{"match label keys", pods, affinity + `"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"a","labelSelector":{"matchLabels":{"x":"y"}},"matchLabelKeys":[`,
		`"a%[1]d"`, `]}]}}}}`},
	{"preferred pods", pods, affinity + `"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[`,
		`{"weight":1,"podAffinityTerm":{"topologyKey":"a","labelSelector":{"matchExpressions":[{"key":"a%[1]d","operator":"Exists"}]}}}`, `]}}}}`},
	{"spread", pods, pod + `,"topologySpreadConstraints":[`, `{"topologyKey":"a%[1]d","maxSkew":1,"whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"x":"y"}}}`, `]}}`},
	{"spread keys", pods, pod + `,"topologySpreadConstraints":[{"topologyKey":"a","maxSkew":1,"whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"x":"y"}},"matchLabelKeys":[`, `"a%d"`, `]}]}}`},
	{"host aliases", pods, pod + `,"hostAliases":[`, `{"ip":"1.2.3.4","hostnames":["a%d"]}`, `]}}`},
	{"host names", pods, pod + `,"hostAliases":[{"ip":"1.2.3.4","hostnames":[`, `"a%d"`, `]}]}}`},
	{"pull secrets", pods, pod + `,"imagePullSecrets":[`, `{"name":"a%d"}`, `]}}`},
	{"gates", pods, pod + `,"schedulingGates":[`, `{"name":"a%d"}`, `]}}`},
	{"readiness gates", pods, pod + `,"readinessGates":[`, `{"conditionType":"a%d"}`, `]}}`},
	{"pod claims", pods, pod + `,"resourceClaims":[`, `{"name":"a%[1]d","resourceClaimName":"a%[1]d"}`, `]}}`},
	{"sysctls", pods, pod + `,"securityContext":{"sysctls":[`, `{"name":"kernel.a%d","value":"1"}`, `]}}}`},
	{"groups", pods, pod + `,"securityContext":{"supplementalGroups":[`, `%d`, `]}}}`},
	{"overhead", pods, pod + `,"overhead":{`, `"a/b%d":"1"`, `}}}`},
	{"nameservers", pods, pod + `,"dnsConfig":{"nameservers":[`, `"1.2.3.4%d"`, `]}}}`},
	{"searches", pods, pod + `,"dnsConfig":{"searches":[`, `"a%d"`, `]}}}`},
	{"dns options", pods, pod + `,"dnsConfig":{"options":[`, `{"name":"a%d"}`, `]}}}`},
	{"service ports", services, `{"metadata":{"name":"new"},"spec":{"ports":[`, `{"name":"a%[1]d","port":%[1]d,"nodePort":%[1]d}`, `]}}`},
	{"good service ports", services, `{"metadata":{"name":"new"},"spec":{"ports":[`, `{"name":"a%[1]d","port":1}`, `]}}`},
	{"service selector", services, selector, `"a%d":"b"`, `},"ports":[{"port":1}]}}`},
	{"external addresses", services, `{"metadata":{"name":"new"},"spec":{"ports":[{"port":1}],"externalIPs":[`, `"1.2.3.4","10.0.0.%d"`, `]}}`},
	{"source ranges", services, `{"metadata":{"name":"new"},"spec":{"type":"LoadBalancer","ports":[{"port":1}],"loadBalancerSourceRanges":[`, `"1.2.3.4/32","::/%d"`, `]}}`},
	{"families", services, `{"metadata":{"name":"new"},"spec":{"ports":[{"port":1}],"ipFamilies":[`, `"IPv4","a%d"`, `]}}`},
	{"cluster addresses", services, `{"metadata":{"name":"new"},"spec":{"ports":[{"port":1}],"clusterIPs":[`, `"10.43.0.3","a%d"`, `]}}`},
	{"endpoint subsets", "/api/v1/namespaces/work/endpoints", `{"metadata":{"name":"new"},"subsets":[`, `{"addresses":[{"ip":"1.2.3.4","hostname":"a%d"}],"ports":[{"port":1}]}`, `]}`},
	{"endpoint addresses", "/api/v1/namespaces/work/endpoints", `{"metadata":{"name":"new"},"subsets":[{"addresses":[`, `{"ip":"1.2.3.4","hostname":"a%d"}`, `],"ports":[{"port":1}]}]}`},
	{"endpoint ports", "/api/v1/namespaces/work/endpoints", `{"metadata":{"name":"new"},"subsets":[{"addresses":[{"ip":"1.2.3.4"}],"ports":[`, `{"name":"a%d","port":1}`, `]}]}`},
	{"slice endpoints", in("discovery.k8s.io", "v1", "endpointslices"), `{"metadata":{"name":"new"},"addressType":"IPv4","endpoints":[`, `{"addresses":["1.2.3.4"],"hostname":"a%d"}`, `]}`},
	{"slice addresses", in("discovery.k8s.io", "v1", "endpointslices"), `{"metadata":{"name":"new"},"addressType":"IPv4","endpoints":[{"addresses":[`, `"1.2.3.4","a%d"`, `]}]}`},
	{"slice topology", in("discovery.k8s.io", "v1", "endpointslices"), `{"metadata":{"name":"new"},"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"],"deprecatedTopology":{`, `"a%d":"b"`, `}}]}`},
	{"policy rules", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{},"ingress":[`, `{"ports":[{"port":80}],"from":[{"podSelector":{"matchLabels":{"a%d":"b"}}}]}`, `]}}`},
	{"policy peers", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{},"ingress":[{"from":[`, `{"podSelector":{"matchLabels":{"a%d":"b"}}}`, `]}]}}`},
	{"policy blocks", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":[`, `"10.1.2.3/32","10.%d.0.0/16"`, `]}}]}]}}`},
	{"policy ports", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{},"ingress":[{"ports":[`, `{"port":"a%d"}`, `]}]}}`},
	{"policy selector", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{"matchExpressions":[`, `{"key":"a%d","operator":"Exists"}`, `]}}}`},
	{"policy values", in("networking.k8s.io", "v1", "networkpolicies"), `{"metadata":{"name":"new"},"spec":{"podSelector":{"matchExpressions":[{"key":"a","operator":"In","values":[`, `"a%d"`, `]}]}}}`},
	{"ingress rules", in("networking.k8s.io", "v1", "ingresses"), `{"metadata":{"name":"new"},"spec":{"rules":[`, `{"host":"a%d"}`, `]}}`},
	{"ingress paths", in("networking.k8s.io", "v1", "ingresses"), `{"metadata":{"name":"new"},"spec":{"rules":[{"http":{"paths":[`, `{"path":"/a%d","pathType":"Prefix","backend":{"service":{"name":"a","port":{"number":1}}}}`, `]}}]}}`},
	{"ingress tls", in("networking.k8s.io", "v1", "ingresses"), `{"metadata":{"name":"new"},"spec":{"tls":[{"hosts":[`, `"a%d"`, `]}]}}`},
	{"deployment selector", in("apps", "v1", "deployments"), `{"metadata":{"name":"new"},"spec":{"template":{},"selector":{"matchExpressions":[`, `{"key":"a%d","operator":"NotIn","values":["b"]}`, `]}}}`},
	{"deployment labels", in("apps", "v1", "deployments"), `{"metadata":{"name":"new"},"spec":{"template":{},"selector":{"matchLabels":{`, `"a%d":"b"`, `}}}}`},
	{"claim templates", in("apps", "v1", "statefulsets"), `{"metadata":{"name":"new"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"i"}]}},"volumeClaimTemplates":[`, `{"metadata":{"name":"a%d"}}`, `]}}`},
	{"pod failure rules", in("batch", "v1", "jobs"), `{"metadata":{"name":"new"},"spec":{"template":` + pod + `}},"podFailurePolicy":{"rules":[`, `{"action":"Ignore","onExitCodes":{"operator":"In","values":[%d]}}`, `]}}}`},
	{"exit codes", in("batch", "v1", "jobs"), `{"metadata":{"name":"new"},"spec":{"template":` + pod + `}},"podFailurePolicy":{"rules":[{"action":"Ignore","onExitCodes":{"operator":"In","values":[`, `%d`, `]}}]}}}`},
	{"success rules", in("batch", "v1", "jobs"), `{"metadata":{"name":"new"},"spec":{"completionMode":"Indexed","completions":1000000000,"parallelism":1,"template":` + pod + `}},"successPolicy":{"rules":[`, `{"succeededIndexes":"%d"}`, `]}}}`},
	{"success indexes", in("batch", "v1", "jobs"), `{"metadata":{"name":"new"},"spec":{"completionMode":"Indexed","completions":1000000000,"parallelism":1,"template":` + pod + `}},"successPolicy":{"rules":[{"succeededIndexes":"1`, `%d`, `"}]}}}`},
	{"cron", in("batch", "v1", "cronjobs"), `{"metadata":{"name":"new"},"spec":{"schedule":"1`, `%d`, ` * * * *","jobTemplate":{}}}`},
	{"metrics", in("autoscaling", "v2", "horizontalpodautoscalers"), `{"metadata":{"name":"new"},"spec":{"maxReplicas":2,"scaleTargetRef":{"kind":"a","name":"b"},"metrics":[`, `{"type":"External","external":{"metric":{"name":"a%d"},"target":{"type":"Value","value":"1"}}}`, `]}}`},
	{"quota", "/api/v1/namespaces/work/resourcequotas", `{"metadata":{"name":"new"},"spec":{"hard":{`, `"requests.a/b%d":"1"`, `}}}`},
	{"quota scopes", "/api/v1/namespaces/work/resourcequotas", `{"metadata":{"name":"new"},"spec":{"scopes":[`, `"a%d"`, `]}}`},
	{"quota classes", "/api/v1/namespaces/work/resourcequotas", `{"metadata":{"name":"new"},"spec":{"scopeSelector":{"matchExpressions":[`, `{"scopeName":"PriorityClass","operator":"In","values":["a%d"]}`, `]}}}`},
	{"limits", "/api/v1/namespaces/work/limitranges", `{"metadata":{"name":"new"},"spec":{"limits":[`, `{"type":"a%d","max":{"cpu":"1"}}`, `]}}`},
	{"limit resources", "/api/v1/namespaces/work/limitranges", `{"metadata":{"name":"new"},"spec":{"limits":[{"type":"Container","max":{`, `"a/b%d":"1"`, `}}]}}`},
	{"account secrets", "/api/v1/namespaces/work/serviceaccounts", `{"metadata":{"name":"new"},"secrets":[`, `{"name":"a%d"}`, `]}`},
	{"replication selector", "/api/v1/namespaces/work/replicationcontrollers", selector, `"a%d":"b"`, `},"template":` + pod + `}}}}`},
	{"taints", "/api/v1/nodes", `{"metadata":{"name":"new"},"spec":{"taints":[`, `{"key":"a%d","effect":"NoSchedule"}`, `]}}`},
	{"pod ranges", "/api/v1/nodes", `{"metadata":{"name":"new"},"spec":{"podCIDRs":[`, `"10.0.0.0/24","a%d"`, `]}}`},
	{"node images", "/api/v1/nodes", `{"metadata":{"name":"new"},"status":{"images":[`, `{"names":["a%d"]}`, `]}}`},
	{"node capacity", "/api/v1/nodes", `{"metadata":{"name":"new"},"status":{"capacity":{`, `"a/b%d":"1"`, `}}}`},
	{"namespace finalizers", "/api/v1/namespaces", `{"metadata":{"name":"new"},"spec":{"finalizers":[`, `"a/b%d"`, `]}}`},
	{"volume terms", "/api/v1/persistentvolumes", `{"metadata":{"name":"new"},"spec":{"capacity":{"storage":"1"},"accessModes":["ReadWriteOnce"],"local":{"path":"/a"},"nodeAffinity":{"required":{"nodeSelectorTerms":[`, `{"matchExpressions":[{"key":"a%d","operator":"Exists"}]}`, `]}}}}`},
	{"access modes", "/api/v1/persistentvolumes", `{"metadata":{"name":"new"},"spec":{"capacity":{"storage":"1"},"local":{"path":"/a"},"accessModes":[`, `"ReadWriteOnce","a%d"`, `]}}`},
	{"mount options", "/api/v1/persistentvolumes", `{"metadata":{"name":"new"},"spec":{"capacity":{"storage":"1"},"local":{"path":"/a"},"accessModes":["ReadWriteOnce"],"mountOptions":[`, `"a%d"`, `]}}`},
	{"claim modes", "/api/v1/namespaces/work/persistentvolumeclaims", `{"metadata":{"name":"new"},"spec":{"resources":{"requests":{"storage":"1"}},"accessModes":[`, `"ReadWriteOnce","a%d"`, `]}}`},
	{"class topologies", at("storage.k8s.io", "v1", "storageclasses"), `{"metadata":{"name":"new"},"provisioner":"a/b","allowedTopologies":[`, `{"matchLabelExpressions":[{"key":"a%d","values":["b"]}]}`, `]}`},
	{"class parameters", at("storage.k8s.io", "v1", "storageclasses"), `{"metadata":{"name":"new"},"provisioner":"a/b","parameters":{`, `"a%d":"b"`, `}}`},
	{"node drivers", at("storage.k8s.io", "v1", "csinodes"), `{"metadata":{"name":"new"},"spec":{"drivers":[`, `{"name":"a%[1]d","nodeID":"x","topologyKeys":["a","b%[1]d"]}`, `]}}`},
	{"driver keys", at("storage.k8s.io", "v1", "csinodes"), `{"metadata":{"name":"new"},"spec":{"drivers":[{"name":"a","nodeID":"x","topologyKeys":[`, `"a%d"`, `]}]}}`},
	{"token requests", at("storage.k8s.io", "v1", "csidrivers"), `{"metadata":{"name":"new"},"spec":{"tokenRequests":[`, `{"audience":"a%d"}`, `]}}`},
	{"role verbs and names", in("rbac.authorization.k8s.io", "v1", "roles"), `{"metadata":{"name":"new"},"rules":[{"apiGroups":["",` + numbers(10) + `],"resources":["pods",` + numbers(10) + `],"verbs":[` + numbers(10) + `],"resourceNames":[`, `"a%d"`, `]}]}`},
	{"role rules", in("rbac.authorization.k8s.io", "v1", "roles"), `{"metadata":{"name":"new"},"rules":[`, `{"apiGroups":["a%d"],"resources":["pods"],"verbs":["get"]}`, `]}`},
	{"role paths", at("rbac.authorization.k8s.io", "v1", "clusterroles"), `{"metadata":{"name":"new"},"rules":[{"verbs":["get",` + numbers(10) + `],"nonResourceURLs":[`, `"/a%d"`, `]}]}`},
	{"role aggregation", at("rbac.authorization.k8s.io", "v1", "clusterroles"), `{"metadata":{"name":"new"},"aggregationRule":{"clusterRoleSelectors":[`, `{"matchLabels":{"a":"b%d"}}`, `]}}`},
	{"binding subjects", in("rbac.authorization.k8s.io", "v1", "rolebindings"), `{"metadata":{"name":"new"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"most"},"subjects":[`, `{"kind":"ServiceAccount","namespace":"a","name":"b%d"}`, `]}`},
	{"flow rules", at("flowcontrol.apiserver.k8s.io", "v1", "flowschemas"), `{"metadata":{"name":"new"},"spec":{"matchingPrecedence":1,"priorityLevelConfiguration":{"name":"a"},"rules":[`, `{"subjects":[{"kind":"User","user":{"name":"a%d"}}],"resourceRules":[{"verbs":["get"],"apiGroups":["a"],"resources":["b"],"namespaces":["c"]}]}`, `]}}`},
	{"webhooks", at("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"), `{"metadata":{"name":"new"},"webhooks":[`, `{"name":"a%d.b.c","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"https://a/b"},"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}]}`, `]}`},
	{"webhook rules", at("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"), `{"metadata":{"name":"new"},"webhooks":[{"name":"a.b.c","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"https://a/b"},"rules":[`, `{"operations":["*"],"apiGroups":["a%d"],"apiVersions":["*"],"resources":["*"]}`, `]}]}`},
	{"webhook resources", at("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"), `{"metadata":{"name":"new"},"webhooks":[{"name":"a.b.c","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"https://a/b"},"rules":[{"operations":["*"],"apiGroups":["a"],"apiVersions":["*"],"resources":[`, `"a%d/b","b/*"`, `]}]}]}`},
	{"webhook conditions", at("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"), `{"metadata":{"name":"new"},"webhooks":[{"name":"a.b.c","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"https://a/b"},"matchConditions":[`, `{"name":"a%d","expression":"object.metadata.name == 'a'"}`, `]}]}`},
	{"policy validations", at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), policy + `"validations":[`, `{"expression":"object.metadata.name != 'a%d'"}`, `]}}`},
	{"policy variables", at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), policy + `"validations":[{"expression":"true"}],"variables":[`, `{"name":"a%d","expression":"object.metadata.name"}`, `]}}`},
	{"policy annotations", at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), policy + `"validations":[{"expression":"true"}],"auditAnnotations":[`, `{"key":"a%d","valueExpression":"object.metadata.name"}`, `]}}`},
	{"policy mutations", at("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies"), policy + `"reinvocationPolicy":"Never","mutations":[`, `{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'add', path: '/a%d', value: 1}]"}}`, `]}}`},
	{"policy long or", at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), policy + `"validations":[{"expression":"[1`, `%d`, `].all(x, x > 1)"}]}}`},
	{"policy plus", at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), policy + `"validations":[{"expression":"[1`, `1+1+1+1+%d`, `].all(x, x > 1)"}]}}`},
	{"device selectors", at("resource.k8s.io", "v1", "deviceclasses"), `{"metadata":{"name":"new"},"spec":{"selectors":[`, `{"cel":{"expression":"device.driver == 'a%d'"}}`, `]}}`},
	{"claim selectors", in("resource.k8s.io", "v1", "resourceclaims"), `{"metadata":{"name":"new"},"spec":{"devices":{"requests":[`,
		`{"name":"a%[1]d","exactly":{"deviceClassName":"b","selectors":[{"cel":{"expression":"` + strings.Repeat("device.driver=='a%[1]d'&&", 300) + `true"}}]}}`, `]}}}`},
	{"claim requests", in("resource.k8s.io", "v1", "resourceclaims"), `{"metadata":{"name":"new"},"spec":{"devices":{"requests":[`, `{"name":"a%d","exactly":{"deviceClassName":"b"}}`, `]}}}`},
	{"claim constraints", in("resource.k8s.io", "v1", "resourceclaims"), `{"metadata":{"name":"new"},"spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"b"}}],"constraints":[`, `{"requests":["a%d"],"matchAttribute":"a/b"}`, `]}}}`},
	{"claim tolerations", in("resource.k8s.io", "v1", "resourceclaims"), `{"metadata":{"name":"new"},"spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"b","tolerations":[`, `{"key":"a%d","operator":"Exists"}`, `]}}]}}}`},
	{"slice devices", at("resource.k8s.io", "v1", "resourceslices"), `{"metadata":{"name":"new"},"spec":{"driver":"a","nodeName":"b","pool":{"name":"c","resourceSliceCount":1},"devices":[`, `{"name":"a%d"}`, `]}}`},
	{"slice counters", at("resource.k8s.io", "v1", "resourceslices"), `{"metadata":{"name":"new"},"spec":{"driver":"a","nodeName":"b","pool":{"name":"c","resourceSliceCount":1},"sharedCounters":[`, `{"name":"a%d","counters":{"a":{"value":"1"}}}`, `]}}`},
	{"device attributes", at("resource.k8s.io", "v1", "resourceslices"), `{"metadata":{"name":"new"},"spec":{"driver":"a","nodeName":"b","pool":{"name":"c","resourceSliceCount":1},"devices":[{"name":"a","attributes":{`, `"a%d":{"string":"b"}`, `}}]}}`},
	{"review groups", at("authorization.k8s.io", "v1", "subjectaccessreviews"), `{"spec":{"user":"a","resourceAttributes":{"verb":"get"},"groups":[`, `"a%d"`, `]}}`},
	{"review extra", at("authorization.k8s.io", "v1", "subjectaccessreviews"), `{"spec":{"user":"a","resourceAttributes":{"verb":"get"},"extra":{`, `"a%d":["b"]`, `}}}`},
	{"review selector", at("authorization.k8s.io", "v1", "selfsubjectaccessreviews"), `{"spec":{"resourceAttributes":{"verb":"list","labelSelector":{"requirements":[`, `{"key":"a%d","operator":"In","values":["b"]}`, `]}}}}`},
	{"review raw selector", at("authorization.k8s.io", "v1", "selfsubjectaccessreviews"), `{"spec":{"resourceAttributes":{"verb":"list","labelSelector":{"rawSelector":"a`, `a%d`, `"}}}}`},
	{"review raw fields", at("authorization.k8s.io", "v1", "selfsubjectaccessreviews"), `{"spec":{"resourceAttributes":{"verb":"list","fieldSelector":{"rawSelector":"a=b`, `a%d=b`, `"}}}}`},
	{"token audiences", at("authentication.k8s.io", "v1", "tokenreviews"), `{"spec":{"token":"a.b.c","audiences":[`, `"a%d"`, `]}}`},
	{"long token", at("authentication.k8s.io", "v1", "tokenreviews"), `{"spec":{"token":"a`, `.a%d.`, `"}}`},
	{"request audiences", "/api/v1/namespaces/work/serviceaccounts/default/token", `{"spec":{"audiences":[`, `"a%d"`, `]}}`},
	{"crd columns", crds, crd("") + `,"additionalPrinterColumns":[`, `{"name":"a%d","type":"string","jsonPath":".spec.a"}`, `]}]}}`},
	{"crd column path", crds, crd("") + `,"additionalPrinterColumns":[{"name":"a","type":"string","jsonPath":".spec`, `.a%d`, `"}]}]}}`},
	{"crd selectable", crds, crd("") + `,"selectableFields":[`, `{"jsonPath":".spec.a%d"}`, `]}]}}`},
	{"crd versions", crds, strings.TrimSuffix(crd(""), "}") + "},", `{"name":"v%d","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}`, `]}}`},
	{"crd short names", crds, strings.Replace(crd(""), `"kind"`, `"shortNames":["a"`, 1), `"a%d"`, `],"kind":"New"}}}`},
	{"crd properties", crds, crd(`"properties":{`), `"a%d":{"type":"string"}`, `}}}}]}}`},
	{"crd objects", crds, crd(`"properties":{`), `"a%d":{"type":"object","properties":{"a":{"type":"string"}}}`, `}}}}]}}`},
	{"crd required", crds, crd(`"required":[`), `"a%d"`, `]}}}]}}`},
	{"crd enum", crds, crd(`"properties":{"a":{"type":"string","enum":[`), `"a%d"`, `]}}}}}]}}`},
	{"crd enum objects", crds, crd(`"properties":{"a":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"enum":[`), `{"a":%d}`, `]}}}}}]}}`},
	{"crd default", crds, crd(`"properties":{"a":{"type":"array","items":{"type":"string"},"default":[`), `"a%d"`, `]}}}}}]}}`},
	{"crd default set", crds, crd(`"properties":{"a":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"},"default":[`), `"a%d"`, `]}}}}}]}}`},
	{"crd default map", crds, crd(`"properties":{"a":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"],"items":{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}},"default":[`), `{"a":"%d"}`, `]}}}}}]}}`},
	{"crd default keys", crds, crd(`"properties":{"a":{"type":"object","additionalProperties":{"type":"string"},"default":{`), `"a%d":""`, `}}}}}}]}}`},
	{"crd default objects", crds, crd(`"properties":{"a":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"default":{`), `"a%d":{}`, `}}}}}}]}}`},
	{"revision data", in("apps", "v1", "controllerrevisions"), `{"metadata":{"name":"new"},"revision":1,"data":{`, `"a%d":{}`, `}}`},
	{"revision list", in("apps", "v1", "controllerrevisions"), `{"metadata":{"name":"new"},"revision":1,"data":{"a":[`, `{"a":%d}`, `]}}`},
	{"claim parameters", in("resource.k8s.io", "v1", "resourceclaims"), `{"metadata":{"name":"new"},"spec":{"devices":{"config":[{"opaque":{"driver":"a","parameters":{`, `"a%d":{}`, `}}}]}}}`},
	{"crd map keys", crds, crd(`"properties":{"a":{"type":"array","x-kubernetes-list-type":"map","items":{"type":"object","properties":{"a":{"type":"string"}}},"x-kubernetes-list-map-keys":[`), `"a%d"`, `]}}}}}]}}`},
	{"crd any of", crds, crd(`"properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[`), `{"enum":["a%d"]}`, `]}}}}}]}}`},
	{"crd all of", crds, crd(`"properties":{"a":{"type":"object","properties":{"x":{"type":"string"}},"allOf":[`), `{"properties":{"a%d":{"minLength":1}}}`, `]}}}}}]}}`},
	{"crd rules", crds, crd(`"properties":{"a":{"type":"string"}},"x-kubernetes-validations":[`), `{"rule":"self.a != 'a%d'"}`, `]}}}]}}`},
	{"crd rules everywhere", crds, crd(`"properties":{`), `"a%d":{"type":"string","maxLength":10,"x-kubernetes-validations":[{"rule":"self != 'a'"}]}`, `}}}}]}}`},
	{"crd long rule", crds, crd(`"properties":{"a":{"type":"string"}},"x-kubernetes-validations":[{"rule":"self.a in ['a'`), `'a%d'`, `]"}]}}}]}}`},
	{"crd patterns", crds, crd(`"properties":{`), `"a%d":{"type":"string","pattern":"^((a{100}){9}){1}$"}`, `}}}}]}}`},
	{"crd pattern", crds, crd(`"properties":{"a":{"type":"string","pattern":"(a`), `|a%d`, `)"}}}}}]}}`},
	{"crd pattern repeats", crds, crd(`"properties":{"a":{"type":"string","pattern":"(a`), `|(%d){900}`, `)"}}}}}]}}`},
	{"crd pattern properties", crds, crd(`"patternProperties":{`), `"a%d":{"type":"string"}`, `}}}}]}}`},
	{"crd examples", crds, crd(`"properties":{"a":{"type":"string","example":[`), `"a%d"`, `]}}}}}]}}`},
	{"task needs", in("tasks.coracle.dev", "v1alpha1", "tasks"), `{"metadata":{"name":"new"},"spec":{"image":"i","needs":[`, `"a%d"`, `]}}`},
	{"task args", in("tasks.coracle.dev", "v1alpha1", "tasks"), `{"metadata":{"name":"new"},"spec":{"image":"i","args":[`, `"a%d"`, `]}}`},
	{"task env", in("tasks.coracle.dev", "v1alpha1", "tasks"), `{"metadata":{"name":"new"},"spec":{"image":"i","env":{`, `"a%d":"b"`, `}}}`},
	{"eviction", pods + "/small/eviction", `{"metadata":{"name":"small","labels":{`, `"a%d":"b"`, `}}}`},
}

const policy = `{"metadata":{"name":"new"},"spec":{"matchConstraints":{"resourceRules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}]},`

const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// crd is the beginning of a definition, up to the properties of its schema, or to the end of its schema.
func crd(schema string) string {
	head := `{"metadata":{"name":"news.a.b"},"spec":{"group":"a.b","scope":"Namespaced","names":{"plural":"news","kind":"New"},` +
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"`
	if schema == "" {
		return head + `,"properties":{"spec":{"type":"object","properties":{"a":{"type":"string"}}}}}}`
	}
	return head + "," + schema
}

// numbers is a list of quoted names.
func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"n%d",`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// rowAt returns the kind that is created at a path.
func (w *world) rowAt(path string) *kind.Resource {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	group, version := "", parts[1]
	if parts[0] == "apis" {
		group, version = parts[1], parts[2]
	}
	for _, r := range w.Engine.Kinds.Table().All() {
		if r.Group == group && r.Version == version && r.Plural == parts[len(parts)-1] {
			return r
		}
	}
	return nil
}

// proto encodes a body in JSON as protobuf; empty if the kind has no such form.
func (w *world) proto(r *kind.Resource, body string) string {
	if r == nil || !r.Proto {
		return ""
	}
	o := r.New()
	if json.Unmarshal([]byte(body), o) != nil {
		return ""
	}
	raw, err := o.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		return ""
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: r.GroupVersion().String(), Kind: r.Kind}, Raw: raw}
	raw, err = u.Marshal()
	if err != nil {
		return ""
	}
	return "k8s\x00" + string(raw)
}

// asApply makes the patch of a server-side apply out of the body of a create.
func asApply(r *kind.Resource, path, body string) call {
	_, name, _ := strings.Cut(body, `"name":"`)
	name, _, _ = strings.Cut(name, `"`)
	body = `{"apiVersion":"` + r.GroupVersion().String() + `","kind":"` + r.Kind + `",` + body[1:]
	path += "/" + name + dryRun + "&fieldManager=me&force=true"
	return call{http.MethodPatch, path, string(types.ApplyPatchType), body}
}

// asApplied is a server-side apply of an object named new.
func asApplied(path, body string) call {
	return call{http.MethodPatch, path + "/new" + dryRun + "&fieldManager=me", string(types.ApplyPatchType), body}
}

var orders = map[string]order{"rising": rising, "falling": falling, "same": same}

// patches are attacks with a patch.
var patches = []struct {
	name, path       string
	media            types.PatchType
	head, part, tail string
}{
	{"apply one key", maps + "/keys", types.ApplyPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"keys"},"data":{"x":"`, `y%d`, `"}}`},
	{"apply other keys", maps + "/keys", types.ApplyPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"keys"},"data":{`, `"y%d":""`, `}}`},
	{"apply one label", maps + "/labelled", types.ApplyPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"labelled","labels":{"x":"`, `y%d`, `"}}}`},
	{"apply finalizers", maps + "/held", types.ApplyPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"held","finalizers":[`, `"b/y%d"`, `]}}`},
	{"merge keys", maps + "/keys", types.MergePatchType, `{"data":{`, `"y%d":""`, `}}`},
	{"merge nulls", maps + "/keys", types.MergePatchType, `{"data":{`, `"k%d":null`, `}}`},
	{"merge labels", maps + "/small", types.MergePatchType, `{"metadata":{"labels":{`, `"y%d":""`, `}}}`},
	{"merge finalizers", maps + "/small", types.MergePatchType, `{"metadata":{"finalizers":[`, `"a/y%d"`, `]}}`},
	{"strategic keys", maps + "/keys", types.StrategicMergePatchType, `{"data":{`, `"y%d":""`, `}}`},
	{"strategic nulls", maps + "/keys", types.StrategicMergePatchType, `{"data":{`, `"k%d":null`, `}}`},
	{"strategic finalizers", maps + "/held", types.StrategicMergePatchType, `{"metadata":{"finalizers":[`, `"a/y%d"`, `]}}`},
	{"strategic same finalizers", maps + "/held", types.StrategicMergePatchType, `{"metadata":{"finalizers":[`, `"a/k%d"`, `]}}`},
	{"strategic fewer finalizers", maps + "/held", types.StrategicMergePatchType, `{"metadata":{"$deleteFromPrimitiveList/finalizers":[`, `"a/k%d"`, `]}}`},
	{"strategic order", maps + "/held", types.StrategicMergePatchType, `{"metadata":{"$setElementOrder/finalizers":[`, `"a/k%d"`, `]}}`},
	{"strategic owners", maps + "/small", types.StrategicMergePatchType, `{"metadata":{"ownerReferences":[`, `{"apiVersion":"v1","kind":"ConfigMap","name":"a%[1]d","uid":"u%[1]d"}`, `]}}`},
	{"strategic ports", services + "/small", types.StrategicMergePatchType, `{"spec":{"ports":[`, `{"port":%d}`, `]}}`},
	{"strategic containers", pods + "/small", types.StrategicMergePatchType, `{"spec":{"containers":[`, `{"name":"a%d"}`, `]}}`},
	{"strategic conditions", pods + "/small/status", types.StrategicMergePatchType, `{"status":{"conditions":[`, `{"type":"a/a%d","status":"True"}`, `]}}`},
	{"strategic tolerations", pods + "/small", types.StrategicMergePatchType, `{"spec":{"tolerations":[`, `{"key":"a%d","operator":"Exists"}`, `]}}`},
	{"json adds", maps + "/keys", types.JSONPatchType, `[`, `{"op":"add","path":"/data/y%d","value":""}`, `]`},
	{"json removes", maps + "/keys", types.JSONPatchType, `[`, `{"op":"remove","path":"/data/k%d"}`, `]`},
	{"json tests", maps + "/keys", types.JSONPatchType, `[`, `{"op":"test","path":"/data/k%d","value":""}`, `]`},
	{"json copies", maps + "/small", types.JSONPatchType, `[`, `{"op":"copy","from":"/data/a","path":"/data/y%d"}`, `]`},
	{"json copies all", maps + "/small", types.JSONPatchType, `[`, `{"op":"copy","from":"/data","path":"/data/y%d"}`, `]`},
	{"json moves", maps + "/keys", types.JSONPatchType, `[`, `{"op":"move","from":"/data","path":"/binaryData"},{"op":"move","from":"/binaryData","path":"/data"}`, `]`},
	{"json inserts", maps + "/held", types.JSONPatchType, `[`, `{"op":"add","path":"/metadata/finalizers/0","value":"a/y%d"}`, `]`},
	{"json list tests", maps + "/held", types.JSONPatchType, `[`, `{"op":"test","path":"/metadata/finalizers/5000","value":"a/k1005000"}`, `]`},
}

// TestPatches measures each patch.
func TestPatches(t *testing.T) {
	if _, ok := long(); !ok {
		t.Skip("CORACLE_TEST_COST is not set")
	}
	w := newWorld(t, true)
	for _, a := range patches {
		for _, o := range []string{"rising", "falling"} {
			t.Run(strings.ReplaceAll(a.name, " ", "-")+"/"+o, func(t *testing.T) {
				w.judge(t, 24<<10, func(n int) call {
					path := a.path + dryRun + "&fieldManager=me"
					if a.media == types.ApplyPatchType {
						path += "&force=true"
					}
					return call{http.MethodPatch, path, string(a.media), many(n, a.head, a.part, a.tail, orders[o])}
				})
			})
		}
	}
}

// TestAttacks measures each attack in each format.
func TestAttacks(t *testing.T) {
	if _, ok := long(); !ok {
		t.Skip("CORACLE_TEST_COST is not set")
	}
	w := newWorld(t, true)
	for _, a := range grownObjects {
		for _, o := range []string{"rising", "falling", "same"} {
			name := strings.ReplaceAll(a.name, " ", "-") + "/" + o
			body := func(n int) string { return many(n, a.head, a.part, a.tail, orders[o]) }
			r := w.rowAt(a.path)
			t.Run(name+"/json", func(t *testing.T) {
				w.judge(t, 24<<10, func(n int) call { return call{"POST", a.path + dryRun, jsons, body(n)} })
			})
			if o == "rising" && w.proto(r, body(100)) != "" {
				t.Run(name+"/proto", func(t *testing.T) {
					w.judge(t, 24<<10, func(n int) call { return call{"POST", a.path + dryRun, protos, w.proto(r, body(n))} })
				})
			}
			if o == "rising" {
				t.Run(name+"/yaml", func(t *testing.T) {
					w.judge(t, 24<<10, func(n int) call { return call{"POST", a.path + dryRun, yamls, body(n)} })
				})
			}
			if r != nil && strings.Contains(body(100), `"name":"`) {
				t.Run(name+"/apply", func(t *testing.T) {
					w.judge(t, 24<<10, func(n int) call { return asApply(r, a.path, body(n)) })
				})
			}
		}
	}
}
