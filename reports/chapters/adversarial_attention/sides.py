"""What each test does not show: both sides' arguments."""

SAYS = {
    "agreement": (
        "that attention is wrong where it disagrees. Jain & Wallace: what does not rank the words as gradients and "
        "leave-one-out do is no measure of what the answer rests on, and a reader takes it for one. Wiegreffe & "
        "Pinter's side: these two are no ground truth either; how far they agree with each other says how much "
        "agreement there is to be had."
    ),
    "permutation": (
        "that the model does not use attention where the answer stays: if hidden states are alike, any weights give "
        "the "
        "same mean (Mohankumar et al. 2020). Jain & Wallace: an explanation that can be shuffled without effect "
        "explains "
        "nothing. Wiegreffe & Pinter: the weights were learned together with the states, and detaching them is no "
        "model "
        "anyone would train."
    ),
    "adversaries": (
        "that another explanation exists: each distribution is found for one text, with the states held fixed. Jain & "
        "Wallace: if very different weights give the same answer, the weights are not the reason for it. Wiegreffe & "
        "Pinter: an explanation need not be the only one, and no model would produce such weights on all texts. "
        "The search gives a lower bound: what it does not find may exist."
    ),
    "consistent": (
        "what attention means in the base model. Wiegreffe & Pinter: if uniform weights do as well, the task needs no "
        "attention and cannot test it; if one adversarial classifier cannot answer alike and attend elsewhere, the "
        "weights are tied to the answers. Jain & Wallace's side: a path that reaches far at little change shows the "
        "opposite, and training that stops short shows only where it stopped."
    ),
    "erasure": (
        "what a text without the word would be answered: erasure leaves the hidden states, which have read the word. "
        "Serrano & Smith: weights predict such effects noisily, gradients better, so attention ranks words poorly. "
        "The other side: where the most attended word decides and a random one does not, attention is doing what it "
        "claims, for the layer that it is in."
    ),
    "supporting_facts": (
        "that attention must find the fact: a recurrent state may hold it at a word of another fact. For attention: "
        "here the truth is known, and a ranking that hits it is faithful to the task. Against it: a hit says that "
        "the weights point there, not that no other weights would have given the same answer."
    ),
}  # fmt: skip
