kubectl create configmap {config} --from-file=plan.json --dry-run=client -o yaml |
  kubectl apply -f -
kubectl apply -f inference.yaml
kubectl delete --ignore-not-found -f gate.yaml
kubectl apply -f gate.yaml
for _ in $(seq {looks}); do
  kubectl get job/{job} -o 'jsonpath={{.status.conditions[*].type}}' |
    grep -qwE 'Complete|Failed' && break
  sleep {pause}
done
kubectl logs job/{job} --all-containers
kubectl wait --for=condition=complete --timeout=0s job/{job}